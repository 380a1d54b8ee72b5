-- Returns ARGV[3] dead letters from the place ARGV[2] on.
return reply('ok', entries_of(KEYS[3], ARGV[2], ARGV[2] + ARGV[3] - 1), false)
