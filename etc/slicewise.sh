# sbatch that shows what Slicewise decides about each job. For bash, zsh and dash:
#     . /usr/share/slicewise/slicewise.sh      or      eval "$(slicewise sbatch --shell-function)"
# Plain sbatch again: unset -f sbatch
sbatch() {
    SLICEWISE_EXPLAIN=1 command sbatch "$@"
}
