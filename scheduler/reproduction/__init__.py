"""`drom reproduce`: the experiments of published papers run again, beside the numbers that the papers give."""
