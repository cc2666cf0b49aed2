package agentlog

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// withoutHead leaves out of a line of slog's what head has.
func withoutHead(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
		return slog.Attr{}
	}
	return a
}

// nomadKeys gives a line of JSON the keys that Nomad's agent has.
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

// oneLine returns a message without control characters: an agent logs what clients send, and a reader has a terminal.
func oneLine(message string) string {
	if strings.ContainsFunc(message, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return strconv.Quote(message)
	}
	return message
}
