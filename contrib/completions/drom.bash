# Completion of drom and drom-run in bash. Installed as share/bash-completion/completions/drom it is loaded when needed.

# Complete a word of drom run, whose options begin at word $1.
_drom_run() {
    local at=$1 current=${COMP_WORDS[COMP_CWORD]} is_command=
    while ((at < COMP_CWORD)) && [[ -z $is_command ]]; do
        case ${COMP_WORDS[at]} in
        --) ((at += 1)) && is_command=yes ;;
        --require | --await | --for-parent) ((at += 1)) ;;
        --*) [[ ${COMP_WORDS[at + 1]} == = ]] && ((at += 3)) || ((at += 2)) ;;
        *) is_command=yes ;;
        esac
    done
    if [[ $is_command ]] || ((at == COMP_CWORD)) && [[ $current != -* ]]; then
        if declare -F _command_offset >/dev/null; then
            _command_offset "$at"
        else
            mapfile -t COMPREPLY < <(compgen -c -- "$current")
        fi
        return
    fi
    local words=
    if ((at == COMP_CWORD)); then
        words=$(drom-run --help | grep -oE -- '^  --[a-z-]+')
    else
        case ${COMP_WORDS[COMP_CWORD - 1]} in
        --class) words="malleable moldable rigid" ;;
        --distribution) words="compact spread per-socket=" ;;
        --malleability) words="auto next-region bind-only" ;;
        --openmp-runtime) words="auto libomp libgomp" ;;
        --runtime-dir) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
        esac
    fi
    [[ $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

_drom() {
    if [[ ${1##*/} == drom-run ]]; then
        _drom_run 1
    elif [[ ${COMP_WORDS[1]} == run ]] && ((COMP_CWORD > 1)); then
        _drom_run 2
    else
        mapfile -t COMPREPLY < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _DROM_COMPLETE=complete_bash "$1")
    fi
}

complete -o default -F _drom drom drom-run
