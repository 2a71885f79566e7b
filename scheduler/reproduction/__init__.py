"""`drom reproduce`: the experiments of published papers, run again and compared with the papers' numbers."""
