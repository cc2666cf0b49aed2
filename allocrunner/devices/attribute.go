package devices

import (
	"math/big"
	"strconv"
	"strings"

	"taskapi/internal/ptr"
)

// attribute is a value of a device's attribute in Nomad: an integer or another number, each perhaps with a unit, a
// boolean, or a text.
type attribute struct {
	int   *int64
	float *float64
	bool  *bool
	text  *string
	unit  string
}

// unit is a unit of a number, such as MB, as a multiple of its dimension's unit.
type unit struct {
	dimension string
	size      *big.Rat
}

// unitOf returns a unit by its name, as Nomad has them.
func unitOf(name string) (unit, bool) {
	base, isRate := strings.CutSuffix(name, "/s")
	dimension := "byte"
	if isRate {
		dimension = "byte/s"
	}
	if prefix, ok := strings.CutSuffix(base, "iB"); ok {
		if i := strings.Index("KMGTPE", prefix); len(prefix) == 1 && i >= 0 {
			return unit{dimension, new(big.Rat).SetInt64(1 << (10 * (i + 1)))}, true
		}
	}
	if prefix, ok := strings.CutSuffix(base, "B"); ok && len(prefix) == 1 {
		if n := thousands(strings.Index("kMGTPE", strings.Replace(prefix, "K", "k", 1))); n != nil {
			return unit{dimension, n}, true
		}
	}
	switch name {
	case "MHz":
		return unit{"hertz", thousands(1)}, true
	case "GHz":
		return unit{"hertz", thousands(2)}, true
	case "mW":
		return unit{"watt", big.NewRat(1, 1000)}, true
	case "W":
		return unit{"watt", big.NewRat(1, 1)}, true
	case "kW":
		return unit{"watt", thousands(0)}, true
	case "MW":
		return unit{"watt", thousands(1)}, true
	case "GW":
		return unit{"watt", thousands(2)}, true
	}
	return unit{}, false
}

// thousands returns 1000 to the power of i+1; nil for a negative i.
func thousands(i int) *big.Rat {
	if i < 0 {
		return nil
	}
	return new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(1000), big.NewInt(int64(i+1)), nil))
}

// parse reads a value: a number, perhaps with a unit, a boolean, or else a text.
func parse(text string) attribute {
	number, name := text, ""
	if end := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/"); end != text {
		// the longest unit at the end, such as "MB/s" before "B/s"
		for i := len(end); i < len(text); i++ {
			if _, ok := unitOf(text[i:]); ok {
				number, name = strings.TrimSpace(text[:i]), text[i:]
				break
			}
		}
	}
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		return attribute{int: &i, unit: name}
	}
	if f, err := strconv.ParseFloat(number, 64); err == nil && f-f == 0 { // neither infinite nor no number
		return attribute{float: &f, unit: name}
	}
	if b, err := strconv.ParseBool(text); err == nil {
		return attribute{bool: &b}
	}
	return attribute{text: &text}
}

// rational returns a number in its dimension's unit; nil for a value that is no number.
func (a attribute) rational() *big.Rat {
	r := new(big.Rat)
	switch {
	case a.int != nil:
		r.SetInt64(*a.int)
	case a.float != nil:
		r.SetFloat64(*a.float)
	default:
		return nil
	}
	if u, ok := unitOf(a.unit); ok {
		r.Mul(r, u.size)
	}
	return r
}

// compare returns -1, 0 or 1, and 0 or 1 for booleans. It returns false for values of different kinds or dimensions.
func (a attribute) compare(b attribute) (int, bool) {
	left, _ := unitOf(a.unit)
	right, _ := unitOf(b.unit)
	x, y := a.rational(), b.rational()
	switch {
	case left.dimension != right.dimension:
		return 0, false
	case x != nil && y != nil:
		return x.Cmp(y), true
	case a.bool != nil && b.bool != nil:
		if ptr.Deref(a.bool) == ptr.Deref(b.bool) {
			return 0, true
		}
		return 1, true
	case a.text != nil && b.text != nil:
		return strings.Compare(*a.text, *b.text), true
	}
	return 0, false
}
