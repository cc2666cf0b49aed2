package devices

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/claims"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/proc"
	"taskapi/internal/ptr"
)

// The kinds of claims.
const (
	deviceKind = "device"
	coreKind   = "core"
)

// ErrTaken means that the machine has the devices or cores that a task asks for, but other allocations or tasks have
// them now, or a device's file is missing.
var ErrTaken = errors.New("not available now")

// reservation chooses the devices and cores for the tasks of a group, while no claim can change.
type reservation struct {
	devices []Device
	cores   []int
	taken   map[[2]string]string // kind and name: the holder in words
	granted map[string][]*api.AllocatedDeviceResource
	claims  []claims.Claim
}

// newReservation returns a reservation beside the claims of others. describe names their holders.
func newReservation(all []Device, others []claims.Claim, describe func(id string) string) *reservation {
	r := &reservation{devices: all, cores: proc.CPUs(), taken: map[[2]string]string{},
		granted: map[string][]*api.AllocatedDeviceResource{}}
	for _, c := range others {
		r.taken[[2]string{c.Kind, c.Name}] = "allocation " + describe(c.Holder)
	}
	return r
}

// claimsOf returns the claims that a task's grant needs.
func claimsOf(task string, granted []*api.AllocatedDeviceResource) (list []claims.Claim) {
	for _, g := range granted {
		for _, id := range g.DeviceIDs {
			if interfaces.IsCores(g) {
				list = append(list, claims.Claim{Kind: coreKind, Name: id, For: task})
			} else {
				list = append(list, claims.Claim{Kind: deviceKind, Name: nameOf(g) + "/" + id, For: task})
			}
		}
	}
	return list
}

// grant gives a task devices and cores that nobody has.
func (r *reservation) grant(task string, granted []*api.AllocatedDeviceResource) {
	list := claimsOf(task, granted)
	for _, c := range list {
		r.taken[[2]string{c.Kind, c.Name}] = fmt.Sprintf("task %q", task)
	}
	r.claims = append(r.claims, list...)
	r.granted[task] = append(r.granted[task], granted...)
}

// keep gives a task its earlier devices and cores, if the task asks for as many, and nobody else has them.
func (r *reservation) keep(t *api.Task, had []*api.AllocatedDeviceResource) bool {
	wanted, has := uint64(ptr.Deref(t.Resources.Cores)), uint64(0)
	for _, d := range t.Resources.Devices {
		wanted += count(d)
	}
	for _, c := range claimsOf(t.Name, had) {
		has++
		if _, taken := r.taken[[2]string{c.Kind, c.Name}]; taken {
			return false
		}
	}
	if wanted == has {
		r.grant(t.Name, had)
	}
	return wanted == has
}

// reserve chooses for a task. Errors: ErrTaken, or one without it if the machine never has what the task asks for.
func (r *reservation) reserve(t *api.Task) error {
	for _, want := range t.Resources.Devices {
		got := choose(want, r.devices, func(d *Device, i Instance) bool { return r.unavailable(d, i) == "" })
		if got == nil {
			return fmt.Errorf("task %q: %w", t.Name, r.explain(want))
		}
		r.grant(t.Name, []*api.AllocatedDeviceResource{got})
	}
	return r.reserveCores(t)
}

func (r *reservation) reserveCores(t *api.Task) error {
	wanted := ptr.Deref(t.Resources.Cores)
	if wanted <= 0 {
		return nil
	}
	var free []string
	var held []string
	for _, core := range r.cores {
		name := strconv.Itoa(core)
		if who, taken := r.taken[[2]string{coreKind, name}]; taken {
			held = append(held, fmt.Sprintf("core %s by %s", name, who))
		} else if len(free) < wanted {
			free = append(free, name)
		}
	}
	switch {
	case wanted > len(r.cores):
		return fmt.Errorf("task %q: it wants %d cores, and taskapi may use %d of this machine", t.Name, wanted, len(r.cores))
	case len(free) < wanted:
		return fmt.Errorf("task %q: it wants %d cores, and %d of %d are free: %w (held: %s)", t.Name, wanted, len(free),
			len(r.cores), ErrTaken, some(held))
	}
	r.grant(t.Name, []*api.AllocatedDeviceResource{interfaces.CoresDevice(free)})
	return nil
}

// unavailable says why an instance can't be given; empty if it can.
func (r *reservation) unavailable(d *Device, i Instance) string {
	if who, taken := r.taken[[2]string{deviceKind, d.Name + "/" + i.ID}]; taken {
		return "is held by " + who
	}
	if path := d.missing(i); path != "" {
		return "lacks " + path
	}
	return ""
}

// explain says why a request gets nothing.
func (r *reservation) explain(want *api.RequestedDevice) error {
	var reasons, names []string
	for i := range r.devices {
		d := &r.devices[i]
		names = append(names, fmt.Sprintf("%s (%d)", d.Name, len(d.Instances)))
		if !matches(want, d) {
			continue
		}
		suitable := 0
		var lacks []string
		for _, one := range d.Instances {
			if !mayHave(want, d, one.ID) {
				continue
			}
			suitable++
			if why := r.unavailable(d, one); why != "" {
				lacks = append(lacks, one.ID+" "+why)
			}
		}
		if uint64(suitable) >= count(want) {
			reasons = append(reasons, fmt.Sprintf("%s: %s", d.Name, some(lacks)))
		}
	}
	switch {
	case len(reasons) > 0:
		return fmt.Errorf("device %q, count %d: %w (%s)", want.Name, count(want), ErrTaken, strings.Join(reasons, "; "))
	case len(names) == 0:
		return fmt.Errorf("device %q: this machine offers no devices; an operator gives them in the settings by "+
			"device \"VENDOR/TYPE/NAME\" blocks", want.Name)
	}
	return fmt.Errorf("device %q, count %d: no device of this machine has that name, that many instances, and keeps the "+
		"constraints; it offers %s", want.Name, count(want), some(names))
}

// some joins at most eight texts.
func some(texts []string) string {
	const most = 8
	if more := len(texts) - most; more > 0 {
		texts = append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

// Problems returns why the tasks of a group would get no devices or cores now in an allocation, by task. Errors that
// wrap ErrTaken may pass. It claims nothing.
func Problems(id string, group *api.TaskGroup, all []Device, table claims.Table, describe func(id string) string,
) map[string]error {
	problems := map[string]error{}
	others, err := table.List()
	others = slices.DeleteFunc(others, func(c claims.Claim) bool { return c.Holder == id })
	r := newReservation(all, others, describe)
	for _, t := range group.Tasks {
		if !needs(t) {
			continue
		}
		if err == nil {
			err = r.reserve(t)
		}
		if err != nil {
			problems[t.Name] = err
			err = nil
		}
	}
	return problems
}
