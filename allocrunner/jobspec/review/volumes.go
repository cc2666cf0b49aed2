package review

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/volumes"
	"taskapi/internal/ptr"
)

var volumeRows = []row[api.VolumeRequest]{
	{"mount_options", Refused, "a host volume has none; mount the file system on the machine", nil},
	{"sticky", Note, "there is one machine, which has the volume", nil},
}

var volumeLimits = []limit[api.VolumeRequest]{
	{"volume type", `it must be "host": there are no CSI plugins here`, nil,
		func(v *api.VolumeRequest) bool { return v.Type == "host" }},
	{"volume source", "it must name a host_volume of the machine's settings", nil,
		func(v *api.VolumeRequest) bool { return v.Source != "" }},
	among[api.VolumeRequest]("volume access_mode", "", volumes.Reader, volumes.Writer, volumes.SingleWriter,
		volumes.MultiWriter),
	{"volume access_mode", "single-node-reader-only needs read_only = true", nil,
		func(v *api.VolumeRequest) bool { return v.AccessMode != volumes.Reader || v.ReadOnly }},
	among[api.VolumeRequest]("volume attachment_mode", "", "file-system"),
	{"volume per_alloc", "a sticky volume can't have it", nil,
		func(v *api.VolumeRequest) bool { return !v.PerAlloc || !v.Sticky }},
}

var volumeMountLimits = []limit[api.VolumeMount]{
	{"volume_mount destination", volumes.DestinationWords, nil, func(m *api.VolumeMount) bool {
		at := ptr.Deref(m.Destination)
		_, ok := volumes.Destination(interfaces.TaskDir{}, at)
		return ok || hasReference(at)
	}},
	among[api.VolumeMount]("volume_mount propagation_mode", "", api.VolumeMountPropagationPrivate,
		api.VolumeMountPropagationHostToTask, api.VolumeMountPropagationBidirectional),
	among[api.VolumeMount]("volume_mount selinux_label", "", "z", "Z"),
}

func (r *reviewer) volumes() {
	for _, name := range slices.Sorted(maps.Keys(r.group.Volumes)) {
		r.in("volume", name, func() {
			v := r.group.Volumes[name]
			if v == nil {
				r.refuse("volume", "a volume is null; leave it out")
				return
			}
			apply(r, volumeRows, v)
			restrict(r, volumeLimits, v)
			r.notOfType("volume per_alloc", v.PerAlloc && r.isType(api.JobTypeSystem, api.JobTypeSysbatch))
			if u := r.group.Update; v.PerAlloc && u != nil && ptr.Deref(u.Canary) > 0 {
				r.refuse("volume per_alloc", "an update with a canary can't have it: set canary = 0")
			}
			if v.Type == "host" && v.Source != "" {
				r.source(v)
			}
		})
	}
}

// source refuses a volume that the machine does not have. Which of the allocations runs here, and so the index of a
// per_alloc volume, is not known yet.
func (r *reviewer) source(v *api.VolumeRequest) {
	if _, err := volumes.Find(r.host.Volumes, v, ""); err != nil && !v.PerAlloc {
		r.refuse("volume source", "%v", err)
		return
	}
	if v.PerAlloc && !slices.ContainsFunc(r.host.Volumes, func(has volumes.Volume) bool {
		return strings.HasPrefix(has.Name, v.Source+"[")
	}) {
		r.refuse("volume source", "%v", volumes.Unknown(r.host.Volumes, v.Source+"[0]"))
	}
}

func (r *reviewer) mounts(t *api.Task) {
	driver, err := r.host.Drivers.Get(t.Driver)
	links := err == nil && !driver.Capabilities().Mounts
	seen := map[string]bool{}
	each(r, "volume_mount", t.VolumeMounts, func(m *api.VolumeMount) {
		name, destination := ptr.Deref(m.Volume), ptr.Deref(m.Destination)
		r.in("volume_mount", name, func() {
			v := r.group.Volumes[name]
			if v == nil && !hasReference(name) {
				r.refuse("volume_mount volume", "the group has no volume %q; it has: %s", name, r.volumeNames())
			}
			restrict(r, volumeMountLimits, m)
			at, ok := volumes.Destination(interfaces.TaskDir{}, destination)
			if ok && seen[at] {
				r.refuse("volume_mount destination", "two mounts have the destination %q", destination)
			}
			seen[at] = true
			if links {
				r.linkNotes(m, v)
			}
		})
	})
}

// linkNotes says what a link to a volume can't do.
func (r *reviewer) linkNotes(m *api.VolumeMount, v *api.VolumeRequest) {
	if ptr.Deref(m.ReadOnly) || v != nil && v.ReadOnly {
		r.add(Warning, "volume_mount read_only", readOnlyWords)
	}
	if mode := ptr.Deref(m.PropagationMode); mode != "" && mode != api.VolumeMountPropagationPrivate {
		r.add(Note, "volume_mount propagation_mode", linkWords)
	}
	if ptr.Deref(m.SELinuxLabel) != "" {
		r.add(Warning, "volume_mount selinux_label", "the files of the volume keep their labels")
	}
}

const (
	readOnlyWords = "a task of raw_exec gets a link and no mount, so it can write wherever its user may"
	linkWords     = "a task of raw_exec gets a link and no mount, so it sees what the machine mounts"
)

func (r *reviewer) volumeNames() string {
	var names []string
	for name := range r.group.Volumes {
		names = append(names, fmt.Sprintf("%q", name))
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
