"""Where step time goes: breakdown, phases, idle time, step times."""
