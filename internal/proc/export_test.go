package proc

var (
	ParseStat   = parseStat
	ParseMounts = parseMounts

	ChildrenAmongAll = childrenAmongAll
	ReadAll          = readAll
)
