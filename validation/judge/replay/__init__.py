"""The executor of a GPU machine: launches recorded device code in a process that never imports a candidate."""
