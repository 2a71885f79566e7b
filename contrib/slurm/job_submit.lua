-- SPDX-License-Identifier: Apache-2.0
-- Plugin job_submit/lua of Slurm for malleable jobs. It lets them share their nodes' cores two deep (OverSubscribe=YES:2), and
-- refuses bounds that cannot be right. Other jobs are untouched. See docs/slurm.md.
--
-- A site with a job_submit.lua of its own calls drom_submit() and drom_modify() from that: both return a status of Slurm.

-- Partitions whose jobs wait for the daemon `drom slurm` (level 2), by name: { malleable = true }. Slurm starts those of others.
local gated = {}

local GATE = "drom_gate"
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

-- The partition of a job: that which it asks for, or the default one.
local function partition_of(job_desc, part_list)
    if job_desc.partition ~= nil and job_desc.partition ~= "" then
        return job_desc.partition
    end
    for name, partition in pairs(part_list or {}) do
        if partition.flag_default ~= nil and partition.flag_default ~= 0 then
            return name
        end
    end
    return ""
end

-- Whether the daemon can place a job: one that asks for nothing but nodes, cores and memory.
local function is_plain(job_desc)
    local others = { "features", "exc_nodes", "reservation", "tres_per_job", "tres_per_node", "tres_per_socket",
                     "tres_per_task", "gres", "burst_buffer" }
    for _, field in ipairs(others) do
        if job_desc[field] ~= nil and job_desc[field] ~= "" then
            return false
        end
    end
    return not is_given(job_desc.het_job_offset)
end

-- Append a word to a list of Slurm that may be empty.
local function append(list, separator, word)
    return (list ~= nil and list ~= "") and (list .. separator .. word) or word
end

-- Let a job wait at the gate, where it waits for the daemon, which reads its bounds from the comment.
local function set_gate(job_desc, min, max)
    job_desc.licenses = append(job_desc.licenses, ",", GATE .. ":1")
    if min then
        job_desc.admin_comment = append(job_desc.admin_comment, " ", string.format("drom:malleable=%d:%d", min, max))
    end
end

-- Whether a text names the licence of the gate.
local function has_gate(licenses)
    return licenses ~= nil and string.find("," .. licenses .. ",", "," .. GATE .. "[:,]") ~= nil
end

-- Return slurm.SUCCESS, with `shared` set for a malleable job, or slurm.ERROR after telling the user why.
function drom_submit(job_desc, part_list, submit_uid)
    local value, min, max = malleable_option(job_desc), nil, nil
    if has_gate(job_desc.licenses) and submit_uid ~= 0 then
        slurm.log_user("drom: the licence %s is not for users: leave it out.", GATE)
        return slurm.ERROR
    end
    if value ~= nil then
        local fault = fault_of(job_desc, value)
        if fault then
            slurm.log_user("drom: %s", fault)
            return slurm.ERROR
        end
        local reason = reason_not_to_share(job_desc)
        if reason then
            slurm.log_user("drom: %s", reason)
        else
            job_desc.shared = 1
            min, max = bounds_of(value)
            if min == nil then -- --malleable alone: from one CPU to those that each task has
                min, max = 1, is_given(job_desc.cpus_per_task) and job_desc.cpus_per_task or 1
            end
        end
    end
    if gated[partition_of(job_desc, part_list)] and is_plain(job_desc) and not has_gate(job_desc.licenses) then
        set_gate(job_desc, min, max)
    end
    return slurm.SUCCESS
end

-- Return slurm.SUCCESS, or slurm.ERROR after telling users that they cannot take their job through the gate themselves.
function drom_modify(job_desc, job_rec, part_list, modify_uid)
    local is_of_user = modify_uid ~= 0 and modify_uid == job_rec.user_id
    if is_of_user and job_desc.licenses ~= nil and (has_gate(job_rec.licenses) or has_gate(job_desc.licenses)) then
        slurm.log_user("drom: the licences of a job that waits for %s stay as they are: cancel it and submit another.", GATE)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return drom_submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return drom_modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
