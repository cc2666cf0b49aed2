package devices

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// operands are the operators of a device's constraints and affinities: Nomad's, without version and semver.
var operands = []string{"=", "==", "is", "!=", "not", "<", "<=", ">", ">=", "regexp", "set_contains",
	"set_contains_all", "set_contains_any", "is_set", "is_not_set"}

// CheckRequest returns the mistakes in a job's request, whatever the machine offers.
func CheckRequest(r *api.RequestedDevice) error {
	parts := strings.SplitN(r.Name, "/", 3)
	if slices.Contains(parts, "") {
		return fmt.Errorf("%q must be TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME", r.Name)
	}
	if count := count(r); count < 1 || count > maxInstances {
		return fmt.Errorf("the count is %d; it must be 1 to %d", count, maxInstances)
	}
	for _, c := range r.Constraints {
		if err := checkRule("constraint", c.LTarget, c.Operand, c.RTarget); err != nil {
			return err
		}
	}
	for _, a := range r.Affinities {
		if err := checkRule("affinity", a.LTarget, a.Operand, a.RTarget); err != nil {
			return err
		}
		if w := weight(a); w == 0 || w < -100 || w > 100 {
			return fmt.Errorf("the weight of an affinity is %d; it must be -100 to 100, and not 0", w)
		}
	}
	return nil
}

func checkRule(what, left, operand, right string) error {
	if !slices.Contains(operands, cmp.Or(operand, "=")) {
		return fmt.Errorf("the operator %q of a device's %s is not known here: use %s", operand, what,
			strings.Join(operands, " "))
	}
	for _, target := range []string{left, right} {
		if _, ok := targetOf(target, &Device{Name: "//"}); !ok && !strings.HasPrefix(target, "${device.attr.") {
			return fmt.Errorf("%s in a device's %s is not known: use ${device.attr.NAME}, ${device.model}, ${device.vendor}, "+
				"${device.type} or ${device.ids}", target, what)
		}
	}
	if operand == "regexp" {
		if _, err := regexp.Compile(right); err != nil {
			return fmt.Errorf("a device's %s: %w", what, err)
		}
	}
	return nil
}

func count(r *api.RequestedDevice) uint64 {
	if r.Count == nil {
		return 1
	}
	return *r.Count
}

func weight(a *api.Affinity) int {
	if a.Weight == nil {
		return 50
	}
	return int(ptr.Deref(a.Weight))
}

// named reports whether a request names a device: by TYPE, VENDOR/TYPE, or VENDOR/TYPE/NAME.
func named(r *api.RequestedDevice, d *Device) bool {
	vendor, kind, name := d.split()
	parts := strings.SplitN(r.Name, "/", 3)
	switch len(parts) {
	case 1:
		return parts[0] == kind
	case 2:
		return parts[0] == vendor && parts[1] == kind
	}
	return parts[0] == vendor && parts[1] == kind && parts[2] == name
}

// targetOf returns the value that one side of a constraint stands for. It returns false for a value that a device does
// not have.
func targetOf(target string, d *Device) (attribute, bool) {
	vendor, kind, name := d.split()
	text := ""
	switch key, ok := strings.CutPrefix(target, "${device."); {
	case !strings.HasPrefix(target, "${"):
		return parse(target), true
	case !ok:
		return attribute{}, false
	case key == "ids}":
		all := make([]string, len(d.Instances))
		for i, one := range d.Instances {
			all[i] = one.ID
		}
		text = strings.Join(all, ",")
	case key == "model}":
		text = name
	case key == "vendor}":
		text = vendor
	case key == "type}":
		text = kind
	default:
		key, ok = strings.CutPrefix(strings.TrimSuffix(key, "}"), "attr.")
		value, has := d.Attributes[key]
		return parse(value), ok && has
	}
	return attribute{text: &text}, true
}

// holds reports whether two values satisfy a rule. A missing value is unequal to any other.
func holds(operand string, left, right attribute, hasLeft, hasRight bool) bool {
	switch operand {
	case "is_set":
		return hasLeft
	case "is_not_set":
		return !hasLeft
	case "!=", "not":
		if !hasLeft || !hasRight {
			return hasLeft != hasRight
		}
		order, ok := left.compare(right)
		return ok && order != 0
	}
	if !hasLeft || !hasRight {
		return false
	}
	order, comparable := left.compare(right)
	switch operand {
	case "", "=", "==", "is":
		return comparable && order == 0
	case "<":
		return comparable && order < 0
	case "<=":
		return comparable && order <= 0
	case ">":
		return comparable && order > 0
	case ">=":
		return comparable && order >= 0
	}
	if left.text == nil || right.text == nil {
		return false
	}
	switch operand {
	case "regexp":
		matches, err := regexp.MatchString(*right.text, *left.text)
		return err == nil && matches
	case "set_contains", "set_contains_all":
		return !slices.ContainsFunc(set(*right.text), func(one string) bool { return !slices.Contains(set(*left.text), one) })
	case "set_contains_any":
		return slices.ContainsFunc(set(*right.text), func(one string) bool { return slices.Contains(set(*left.text), one) })
	}
	return false
}

// set returns the elements of a text, which commas separate.
func set(text string) []string {
	elements := strings.Split(text, ",")
	for i, e := range elements {
		elements[i] = strings.TrimSpace(e)
	}
	return elements
}

// ids stands for the IDs of a device's instances.
const ids = "${device.ids}"

// kept reports whether a device satisfies a rule. An ID is a text, even if it looks like a number.
func kept(left, operand, right string, d *Device) bool {
	x, hasX := targetOf(left, d)
	y, hasY := targetOf(right, d)
	if left == ids && !strings.HasPrefix(right, "${") {
		y = attribute{text: &right}
	}
	if right == ids && !strings.HasPrefix(left, "${") {
		x = attribute{text: &left}
	}
	return holds(operand, x, y, hasX, hasY)
}

// matches reports whether a device satisfies a request.
func matches(r *api.RequestedDevice, d *Device) bool {
	return named(r, d) && !slices.ContainsFunc(r.Constraints, func(c *api.Constraint) bool {
		return !kept(c.LTarget, c.Operand, c.RTarget, d)
	})
}

// mayHave reports whether the constraints on ${device.ids} allow an instance: the other side is compared with its ID.
func mayHave(r *api.RequestedDevice, d *Device, id string) bool {
	return !slices.ContainsFunc(r.Constraints, func(c *api.Constraint) bool {
		other := ""
		switch ids {
		case c.LTarget:
			other = c.RTarget
		case c.RTarget:
			other = c.LTarget
		default:
			return false
		}
		value, ok := targetOf(other, d)
		if !strings.HasPrefix(other, "${") {
			value = attribute{text: &other}
		}
		return !ok || !holds(c.Operand, value, attribute{text: &id}, true, true)
	})
}

// score returns how well a device suits the affinities of a request, -1 to 1.
func score(r *api.RequestedDevice, d *Device) float64 {
	sum, total := 0.0, 0.0
	for _, a := range r.Affinities {
		total += math.Abs(float64(weight(a)))
		if kept(a.LTarget, a.Operand, a.RTarget, d) {
			sum += float64(weight(a))
		}
	}
	if total == 0 {
		return 0
	}
	return sum / total
}

// choose returns the instances for a request. Of the devices with enough free instances it takes the one with the best
// score, the first of equal scores. It returns nil if no device has enough free instances.
func choose(r *api.RequestedDevice, all []Device, free func(d *Device, i Instance) bool) *api.AllocatedDeviceResource {
	var best *api.AllocatedDeviceResource
	bestScore := math.Inf(-1)
	for i := range all {
		d := &all[i]
		if !matches(r, d) || score(r, d) <= bestScore {
			continue
		}
		var chosen []string
		for _, one := range d.Instances {
			if uint64(len(chosen)) < count(r) && free(d, one) && mayHave(r, d, one.ID) {
				chosen = append(chosen, one.ID)
			}
		}
		if uint64(len(chosen)) == count(r) {
			best, bestScore = &api.AllocatedDeviceResource{DeviceIDs: chosen}, score(r, d)
			best.Vendor, best.Type, best.Name = d.split()
		}
	}
	return best
}
