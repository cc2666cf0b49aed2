package agentlog

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// withoutHead leaves out the attributes that head has.
func withoutHead(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
		return slog.Attr{}
	}
	return a
}

// nomadKeys gives a line of JSON the keys of Nomad's agent.
func nomadKeys(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch value := a.Value.Any().(type) {
	case time.Time:
		if a.Key == slog.TimeKey {
			return slog.String("@timestamp", value.Format(stamp))
		}
	case slog.Level:
		if a.Key == slog.LevelKey {
			return slog.String("@level", strings.ToLower(levelName(value)))
		}
	}
	if a.Key == slog.MessageKey {
		a.Key = "@message"
	}
	return a
}

// oneLine quotes a message with control characters: a client may have sent it, and it may be shown on a terminal.
func oneLine(message string) string {
	if strings.ContainsFunc(message, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return strconv.Quote(message)
	}
	return message
}
