package base

import (
	"net"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// MaxLastLine is how much of each of these lines is printed, in letters.
const MaxLastLine = 300

// Clipped returns the beginning of a text, with a mark where it was longer.
func Clipped(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}

func AddressOf(s *api.ServiceRegistration) string {
	if s.Port == 0 {
		return s.Address
	}
	return net.JoinHostPort(s.Address, strconv.Itoa(s.Port))
}

func Plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
