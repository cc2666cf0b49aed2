package devices

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/same"
)

// TestCompare compares values as Nomad's devices have them.
func TestCompare(t *testing.T) {
	for _, c := range []struct {
		left, right string
		order       int
		comparable  bool
	}{
		{"8 GiB", "4 GB", 1, true}, {"8GiB", "8192 MiB", 0, true}, {"1 KiB", "1 kB", 1, true}, {"1 KB", "1 kB", 0, true},
		{"1.5 GHz", "1500 MHz", 0, true}, {"500 mW", "1 W", -1, true}, {"2 kW", "1 MW", -1, true},
		{"10 MB/s", "1 GiB/s", -1, true}, {"10 MB/s", "10 MB", 0, false}, {"10", "10 MB", 0, false},
		{"10", "9.5", 1, true}, {"9", "10", -1, true}, {"10", "10x", 0, false}, {"abc", "abd", -1, true},
		{"true", "true", 0, true}, {"true", "false", 1, true}, {"true", "abc", 0, false}, {"", "", 0, true},
		{"9223372036854775807 EiB", "9223372036854775806 EiB", 1, true}, {"1e308 EB", "1", 0, false},
		{"NaN", "NaN", 0, true}, {"-1 GB", "1 B", 0, false}, {"8 gib", "8 GiB", 0, false}, {"KiB", "KiB", 0, true},
		{"0.1 GB", "100 MB", 1, true}, // as a binary fraction, which is a little more
	} {
		order, ok := parse(c.left).compare(parse(c.right))
		if order != c.order || ok != c.comparable {
			t.Errorf("%q with %q: got %d, %v, want %d, %v", c.left, c.right, order, ok, c.order, c.comparable)
		}
	}
}

var a100 = Device{
	Name:       "nvidia/gpu/Tesla A100",
	Attributes: map[string]string{"memory": "40 GiB", "features": "mig, nvlink", "driver": "535.104", "ecc": "true"},
	Instances:  []Instance{{ID: "0"}, {ID: "GPU-1"}, {ID: "GPU-2"}},
}

func constraint(left, operand, right string) *api.Constraint {
	return &api.Constraint{LTarget: left, Operand: operand, RTarget: right}
}

// TestMatches: which requests a device suits.
func TestMatches(t *testing.T) {
	for name, want := range map[string]bool{
		"gpu": true, "nvidia/gpu": true, "nvidia/gpu/Tesla A100": true, "nvidia": false, "amd/gpu": false,
		"nvidia/gpu/a100": false, "gpu/nvidia": false,
	} {
		same.As(t, want, matches(&api.RequestedDevice{Name: name}, &a100), name)
	}
	for _, c := range []struct {
		*api.Constraint
		want bool
	}{
		{constraint("${device.attr.memory}", ">=", "40 GB"), true},
		{constraint("${device.attr.memory}", "<", "40 GB"), false},
		{constraint("16 GiB", "<", "${device.attr.memory}"), true},
		{constraint("${device.attr.memory}", ">", "40 MHz"), false},
		{constraint("${device.attr.missing}", ">", "1"), false},
		{constraint("${device.attr.missing}", "!=", "1"), true},
		{constraint("${device.attr.missing}", "is_not_set", ""), true},
		{constraint("${device.attr.memory}", "is_set", ""), true},
		{constraint("${device.model}", "=", "Tesla A100"), true},
		{constraint("${device.model}", "", "Tesla A100"), true},
		{constraint("${device.model}", "regexp", "^Tesla .*"), true},
		{constraint("${device.vendor}", "!=", "amd"), true},
		{constraint("${device.type}", "is", "gpu"), true},
		{constraint("${device.attr.ecc}", "=", "true"), true},
		{constraint("${device.attr.features}", "set_contains", "nvlink,mig"), true},
		{constraint("${device.attr.features}", "set_contains_all", "nvlink,x"), false},
		{constraint("${device.attr.features}", "set_contains_any", "nvlink,x"), true},
		{constraint("${device.ids}", "set_contains", "0"), true},
		{constraint("${device.ids}", "set_contains", "GPU-3"), false},
		{constraint("${node.class}", "=", "x"), false},
	} {
		request := &api.RequestedDevice{Name: "gpu", Constraints: []*api.Constraint{c.Constraint}}
		same.As(t, c.want, matches(request, &a100), c.LTarget, " ", c.Operand, " ", c.RTarget)
	}
}

// TestChoose: the best device that has enough free instances, and only instances that the constraints allow.
func TestChoose(t *testing.T) {
	small := Device{Name: "nvidia/gpu/T4", Attributes: map[string]string{"memory": "16 GiB"},
		Instances: []Instance{{ID: "T"}}}
	all := []Device{small, a100}
	free := func(busy ...string) func(*Device, Instance) bool {
		return func(_ *Device, i Instance) bool { return !slices.Contains(busy, i.ID) }
	}
	big := &api.Affinity{LTarget: "${device.attr.memory}", Operand: ">", RTarget: "20 GB", Weight: new(int8(60))}
	least := &api.Affinity{LTarget: "${device.attr.memory}", Operand: ">", RTarget: "20 GB", Weight: new(int8(-60))}
	only := func(ids string) []*api.Constraint {
		return []*api.Constraint{constraint(ids, "set_contains_any", "${device.ids}")}
	}
	for name, c := range map[string]struct {
		request api.RequestedDevice
		busy    []string
		want    string // the IDs; empty for none
	}{
		"the first":         {api.RequestedDevice{Name: "gpu"}, nil, "T"},
		"enough instances":  {api.RequestedDevice{Name: "gpu", Count: new(uint64(2))}, nil, "0 GPU-1"},
		"free ones":         {api.RequestedDevice{Name: "gpu", Count: new(uint64(2))}, []string{"0"}, "GPU-1 GPU-2"},
		"too few":           {api.RequestedDevice{Name: "gpu", Count: new(uint64(3))}, []string{"0"}, ""},
		"no mix of devices": {api.RequestedDevice{Name: "gpu", Count: new(uint64(4))}, nil, ""},
		"an affinity":       {api.RequestedDevice{Name: "gpu", Affinities: []*api.Affinity{big}}, nil, "0"},
		"an affinity that can't": {api.RequestedDevice{Name: "gpu", Affinities: []*api.Affinity{big}},
			[]string{"0", "GPU-1", "GPU-2"}, "T"},
		"a negative affinity":     {api.RequestedDevice{Name: "gpu", Affinities: []*api.Affinity{least}}, nil, "T"},
		"some instances":          {api.RequestedDevice{Name: "gpu", Constraints: only("GPU-2,0")}, []string{"0"}, "GPU-2"},
		"instances that are busy": {api.RequestedDevice{Name: "gpu", Constraints: only("GPU-2")}, []string{"GPU-2"}, ""},
	} {
		got := ""
		if chosen := choose(&c.request, all, free(c.busy...)); chosen != nil {
			got = strings.Join(chosen.DeviceIDs, " ")
		}
		same.As(t, c.want, got, name)
	}
}

// TestBadRequests are refused with what would be right.
func TestBadRequests(t *testing.T) {
	for want, r := range map[string]api.RequestedDevice{
		"must be TYPE":       {Name: "nvidia//x"},
		"1 to 1024":          {Name: "gpu", Count: new(uint64(0))},
		`operator "version"`: {Name: "gpu", Constraints: []*api.Constraint{constraint("${device.attr.x}", "version", "> 1")}},
		"${node.class}":      {Name: "gpu", Constraints: []*api.Constraint{constraint("${node.class}", "=", "x")}},
		"missing closing":    {Name: "gpu", Constraints: []*api.Constraint{constraint("${device.model}", "regexp", "(")}},
		"weight":             {Name: "gpu", Affinities: []*api.Affinity{{LTarget: "${device.model}", Weight: new(int8(0))}}},
	} {
		same.Says(t, nil, want, CheckRequest(&r))
	}
}
