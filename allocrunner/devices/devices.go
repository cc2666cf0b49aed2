// Package devices gives tasks instances of the machine's devices, and CPU cores, that no other allocation of the data
// directory has meanwhile. The operator says in the settings which devices there are: the package finds none by itself,
// and checks only whether their files exist. It chooses as Nomad's scheduler does on one node.
package devices

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// Device is a group of like devices that the machine offers.
type Device struct {
	Name       string            `json:"name"` // VENDOR/TYPE/NAME
	Attributes map[string]string `json:"attributes,omitempty"`
	Instances  []Instance        `json:"instances"`
	Files                        // of each task that has an instance
}

// Instance is one of the devices of a group.
type Instance struct {
	ID string `json:"id"`
	Files
}

// Files are what a task gets with a device.
type Files struct {
	Env    map[string]string `json:"env,omitempty"`    // ${ids} stands for the IDs of the task's instances
	Nodes  []string          `json:"nodes,omitempty"`  // HOST[:TASK[:PERMISSIONS]], device files
	Mounts []string          `json:"mounts,omitempty"` // HOST[:TASK[:ro]], for drivers that mount
}

// The bounds of the settings.
const (
	maxDevices   = 256
	maxInstances = 1024
	maxText      = 1 << 10
)

// Check returns the mistakes in the list of a machine's devices.
func Check(all []Device) error {
	if len(all) > maxDevices {
		return fmt.Errorf("there are %d devices; at most %d can be given", len(all), maxDevices)
	}
	named := map[string]bool{}
	for _, d := range all {
		if err := d.check(); err != nil {
			return fmt.Errorf("device %q: %w", d.Name, err)
		}
		if named[d.Name] {
			return fmt.Errorf("device %q is given twice: put all of its instances into one block", d.Name)
		}
		named[d.Name] = true
	}
	return nil
}

func (d Device) check() error {
	parts := strings.SplitN(d.Name, "/", 3)
	odd := func(part string) bool { return !plain(part) || part != strings.TrimSpace(part) }
	if len(parts) != 3 || slices.ContainsFunc(parts, odd) {
		return errors.New("its name must be VENDOR/TYPE/NAME, such as nvidia/gpu/A100")
	}
	if len(d.Instances) == 0 || len(d.Instances) > maxInstances {
		return fmt.Errorf("it has %d instances; give 1 to %d blocks: instance \"ID\" {}", len(d.Instances), maxInstances)
	}
	for name, value := range d.Attributes {
		if !plain(name) || len(value) > maxText {
			return fmt.Errorf("its attribute %q must have a name, and a value of at most %d bytes", name, maxText)
		}
	}
	if err := d.Files.check(); err != nil {
		return err
	}
	ids := map[string]bool{}
	for _, i := range d.Instances {
		if !plain(i.ID) || strings.ContainsAny(i.ID, ", ") {
			return fmt.Errorf("the instance %q must have an ID without commas and blanks", i.ID)
		}
		if ids[i.ID] {
			return fmt.Errorf("the instance %q is given twice", i.ID)
		}
		ids[i.ID] = true
		if err := i.check(); err != nil {
			return fmt.Errorf("instance %q: %w", i.ID, err)
		}
	}
	return nil
}

// plain reports whether a text is a name that can be printed.
func plain(text string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return text != "" && len(text) <= maxText && !strings.ContainsFunc(text, control)
}

func (f Files) check() error {
	for name, value := range f.Env {
		switch {
		case !plain(name) || strings.ContainsAny(name, "= ") || strings.HasPrefix(name, "NOMAD_"):
			return fmt.Errorf("%q can't be a variable of the environment here: give one without blanks and =, and "+
				"none of NOMAD_", name)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("the value of %s must have no zero byte", name)
		}
	}
	for _, text := range f.Nodes {
		if _, err := nodeOf(text); err != nil {
			return err
		}
	}
	for _, text := range f.Mounts {
		if _, err := mountOf(text); err != nil {
			return err
		}
	}
	return nil
}

// nodeOf reads HOST[:TASK[:PERMISSIONS]].
func nodeOf(text string) (interfaces.Device, error) {
	parts, err := paths("node", text)
	if err != nil {
		return interfaces.Device{}, err
	}
	permissions := cmp.Or(parts[2], "rw")
	if strings.Trim(permissions, "rwm") != "" {
		return interfaces.Device{}, fmt.Errorf("the permissions of node %q must be of r, w and m", text)
	}
	return interfaces.Device{HostPath: parts[0], TaskPath: cmp.Or(parts[1], parts[0]), Permissions: permissions}, nil
}

// mountOf reads HOST[:TASK[:ro]].
func mountOf(text string) (interfaces.Mount, error) {
	parts, err := paths("mount", text)
	if err != nil {
		return interfaces.Mount{}, err
	}
	if parts[2] != "" && parts[2] != "ro" && parts[2] != "rw" {
		return interfaces.Mount{}, fmt.Errorf("the mount %q must end with :ro, :rw or its path", text)
	}
	return interfaces.Mount{HostPath: parts[0], TaskPath: cmp.Or(parts[1], parts[0]), ReadOnly: parts[2] == "ro"}, nil
}

func paths(what, text string) (parts [3]string, err error) {
	all := strings.Split(text, ":")
	if len(all) > 3 || len(text) > 4*maxText {
		return parts, fmt.Errorf("the %s %.40q must be HOST, HOST:TASK or HOST:TASK:OPTIONS", what, text)
	}
	copy(parts[:], all)
	for i, path := range all[:min(len(all), 2)] {
		if (i == 0 || path != "") && (!filepath.IsAbs(path) || strings.ContainsRune(path, 0)) {
			return parts, fmt.Errorf("the %s %q must have absolute paths, such as /dev/nvidia0", what, text)
		}
	}
	return parts, nil
}

// split returns vendor, type and name.
func (d Device) split() (vendor, kind, name string) {
	parts := strings.SplitN(d.Name, "/", 3)
	return parts[0], parts[1], parts[2]
}

// missing returns the first file of an instance that does not exist; empty if all exist.
func (d Device) missing(i Instance) string {
	for _, f := range []Files{i.Files, d.Files} {
		for _, text := range f.Nodes {
			if node, err := nodeOf(text); err == nil {
				if _, err := os.Stat(node.HostPath); err != nil {
					return node.HostPath
				}
			}
		}
	}
	return ""
}

// NodeResources returns the devices as Nomad's API has them, with their health now.
func NodeResources(all []Device) []*api.NodeDeviceResource {
	var list []*api.NodeDeviceResource
	for _, d := range all {
		r := &api.NodeDeviceResource{Attributes: map[string]*api.Attribute{}}
		r.Vendor, r.Type, r.Name = d.split()
		for name, text := range d.Attributes {
			a := parse(text)
			r.Attributes[name] = &api.Attribute{FloatVal: a.float, IntVal: a.int, StringVal: a.text, BoolVal: a.bool,
				Unit: a.unit}
		}
		for _, i := range d.Instances {
			one := &api.NodeDevice{ID: i.ID, Healthy: true}
			if path := d.missing(i); path != "" {
				one.Healthy, one.HealthDescription = false, path+" does not exist"
			}
			r.Instances = append(r.Instances, one)
		}
		list = append(list, r)
	}
	return list
}

// given returns the variables, device files and mounts that a task gets with its devices.
func given(all []Device, granted []*api.AllocatedDeviceResource) (env map[string]string, nodes []interfaces.Device,
	mounts []interfaces.Mount) {
	env = map[string]string{}
	for _, g := range granted {
		d := find(all, g)
		if d == nil {
			continue
		}
		files := []Files{d.Files}
		for _, i := range d.Instances {
			if slices.Contains(g.DeviceIDs, i.ID) {
				files = append(files, i.Files)
			}
		}
		ids := strings.NewReplacer("${ids}", strings.Join(g.DeviceIDs, ","))
		for _, f := range files {
			for name, value := range f.Env {
				if had := env[name]; had != "" {
					value = had + "," + value
				}
				env[name] = ids.Replace(value)
			}
			for _, text := range f.Nodes {
				if node, err := nodeOf(text); err == nil && !slices.Contains(nodes, node) {
					nodes = append(nodes, node)
				}
			}
			for _, text := range f.Mounts {
				if mount, err := mountOf(text); err == nil && !slices.Contains(mounts, mount) {
					mounts = append(mounts, mount)
				}
			}
		}
	}
	return env, nodes, mounts
}

// find returns the device of a grant, nil if the machine does not offer it any more.
func find(all []Device, g *api.AllocatedDeviceResource) *Device {
	i := slices.IndexFunc(all, func(d Device) bool { return d.Name == nameOf(g) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func nameOf(g *api.AllocatedDeviceResource) string { return g.Vendor + "/" + g.Type + "/" + g.Name }

// needs reports whether a task asks for a device or a core.
func needs(t *api.Task) bool {
	return t.Resources != nil && (len(t.Resources.Devices) > 0 || ptr.Deref(t.Resources.Cores) > 0)
}

// Needs reports whether a group asks for a device or a core.
func Needs(group *api.TaskGroup) bool { return slices.ContainsFunc(group.Tasks, needs) }
