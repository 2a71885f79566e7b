# Completion of drom and drom-run in fish. Installed in a folder vendor_completions.d it is loaded when needed.

function __drom_words
    _DROM_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) drom
end

function __drom_runs
    set -l words (commandline -cpo)
    test (count $words) -gt 1; and test $words[2] = run
end

complete -c drom -n 'not __drom_runs' -f -a '(__drom_words)'
for command in drom drom-run
    set -l run -c $command
    set -l skip 1
    if test $command = drom
        set run $run -n __drom_runs
        set skip 2
    end
    complete $run -l runtime-dir -x -a '(__fish_complete_directories)' -d 'where the agent listens'
    complete $run -l job -x -d 'name of the job'
    complete $run -l cpus -x -d 'CPUs to ask for'
    complete $run -l min -x -d 'CPUs below which the job must not go'
    complete $run -l class -x -a 'malleable moldable rigid'
    complete $run -l distribution -x -a 'compact spread per-socket='
    complete $run -l mem -x -d 'memory the command needs'
    complete $run -l session -x -d 'what ranks of one launch have in common'
    complete $run -l malleability -x -a 'auto next-region bind-only'
    complete $run -l openmp-runtime -x -a 'auto libomp libgomp'
    complete $run -l require -d 'fail when no agent answers'
    complete $run -l await -d 'wait until an agent answers'
    complete $run -l deadline -x -d 'run unmanaged without a grant after so long'
    complete $run -l for-parent -d 'register the process that has started this one'
    set -l with_value --runtime-dir --job --cpus --min --class --distribution --mem --session --malleability --openmp-runtime --deadline
    complete $run -x -a "(__fish_complete_subcommand --fcs-skip=$skip $with_value)"
end
