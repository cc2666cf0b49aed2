package proc

var (
	ParseStat   = parseStat
	ParseMounts = parseMounts
)
