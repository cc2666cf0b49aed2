package proc

var ParseStat = parseStat
