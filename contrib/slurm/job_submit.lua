-- SPDX-License-Identifier: Apache-2.0
-- Plugin job_submit/lua of Slurm for malleable jobs. It lets them share their nodes' cores two deep (OverSubscribe=YES:2), and
-- refuses bounds that cannot be right. Other jobs are untouched. See docs/slurm.md.
--
-- A site with a job_submit.lua of its own calls drom_submit() and drom_modify() from that: both return a status of Slurm.

local OPTION = "_SLURM_SPANK_OPTION_drom_malleable"
local NO_VAL, NO_VAL16 = 4294967294, 65534
local MOST_CPUS = 32768

-- Whether a number of Slurm is set: fields that nobody has given are nil, or a marker.
local function is_given(value)
    return value ~= nil and value ~= NO_VAL and value ~= NO_VAL16
end

-- The value of --malleable, "" where it was given alone, or nil.
local function malleable_option(job_desc)
    local environment = job_desc.spank_job_env
    local size = environment and job_desc.spank_job_env_size or 0
    for at = 0, size - 1 do
        local name, value = string.match(environment[at] or "", "^([^=]*)=(.*)$")
        if name == OPTION then
            return value
        end
    end
    return nil
end

-- MIN and MAX of a value such as 4:48, or nil. A value of nothing has neither.
local function bounds_of(value)
    local min, max = string.match(value, "^(%d%d?%d?%d?%d?):(%d%d?%d?%d?%d?)$")
    min, max = tonumber(min), tonumber(max)
    if min and min >= 1 and min <= max and max <= MOST_CPUS then
        return min, max
    end
    return nil
end

-- Why a malleable job cannot be right, as a sentence, or nil.
local function fault_of(job_desc, value)
    if value == "" then
        return nil
    end
    local min = bounds_of(value)
    if not min then
        return string.format("--malleable=%s: give two numbers of CPUs per task, from 1 on, such as --malleable=4:48.", value)
    end
    local cpus = job_desc.cpus_per_task
    if is_given(cpus) and cpus > 0 and min > cpus then
        return string.format("--malleable=%s: each task has %d CPUs: give a minimum of at most %d, or more CPUs with -c.",
                             value, cpus, cpus)
    end
    return nil
end

-- Why a malleable job does not share its nodes, as a sentence, or nil.
local function reason_not_to_share(job_desc)
    if is_given(job_desc.het_job_offset) then
        return "a part of a heterogeneous job keeps its CPUs for itself."
    end
    if job_desc.shared == 0 then
        return "with --exclusive this job keeps its nodes for itself."
    end
    -- the whole memory of a node: nobody else has room there
    if job_desc.pn_min_memory == 0 then
        return "with --mem=0 this job keeps the memory of its nodes, and with it the nodes, for itself."
    end
    return nil
end

-- Return slurm.SUCCESS, with `shared` set for a malleable job, or slurm.ERROR after telling the user why.
function drom_submit(job_desc, part_list, submit_uid)
    local value = malleable_option(job_desc)
    if value == nil then
        return slurm.SUCCESS
    end
    local fault = fault_of(job_desc, value)
    if fault then
        slurm.log_user("drom: %s", fault)
        return slurm.ERROR
    end
    local reason = reason_not_to_share(job_desc)
    if reason then
        slurm.log_user("drom: %s", reason)
        return slurm.SUCCESS
    end
    job_desc.shared = 1
    -- Jobs that are to wait for a daemon of drom get its licence here (level 2).
    return slurm.SUCCESS
end

-- Return slurm.SUCCESS: what a user changes of a waiting job stays theirs.
function drom_modify(job_desc, job_rec, part_list, modify_uid)
    -- Changes of licences of waiting jobs are refused here (level 2).
    return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return drom_submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return drom_modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
