"""Facts about the machine: processor, page faults, peak rates of GPUs, versions of drivers and libraries."""
