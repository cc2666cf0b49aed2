package drivers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// echo is a driver that gives back what it gets.
type echo struct{ can drivers.Capabilities }

func (echo) Name() string                         { return "echo" }
func (e echo) Capabilities() drivers.Capabilities { return e.can }
func (echo) Fingerprint() drivers.Fingerprint     { return drivers.Fingerprint{} }
func (echo) Validate(map[string]any) error        { return nil }
func (echo) Build(_ context.Context, t drivers.Task) (drivers.Spec, error) {
	return drivers.Spec{Args: t.Exec, Mounts: t.Mounts, Devices: t.Devices}, nil
}

func TestBuildWantsCapabilities(t *testing.T) {
	task := &api.Task{Driver: "echo"}
	for name, c := range map[string]struct {
		task drivers.Task
		can  drivers.Capabilities
		want string
	}{
		"mounts":  {drivers.Task{Mounts: make([]interfaces.Mount, 1)}, drivers.Capabilities{Mounts: true}, `the driver "echo" can't give a task a mount: give the task the machine's own path`},
		"devices": {drivers.Task{Devices: make([]interfaces.Device, 1)}, drivers.Capabilities{Devices: true}, `the driver "echo" can't give a task a device`},
		"exec":    {drivers.Task{Exec: []string{"x"}}, drivers.Capabilities{Exec: true}, `the driver "echo" can't give a task another program beside its process`},
	} {
		t.Run(name, func(t *testing.T) {
			c.task.Task = task
			_, err := drivers.NewRegistry(echo{}).Build(t.Context(), c.task)
			if start, ok := errors.AsType[*drivers.StartError](err); !ok || start.Reason != c.want || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			got, err := drivers.NewRegistry(echo{c.can}).Build(t.Context(), c.task)
			want := drivers.Spec{Args: c.task.Exec, Mounts: c.task.Mounts, Devices: c.task.Devices}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

func TestUnknownDriver(t *testing.T) {
	_, err := drivers.NewRegistry(echo{}).Get("docker")
	if unknown, ok := errors.AsType[*drivers.UnknownError](err); !ok || unknown.Error() != `the driver "docker" is not here; there is: echo` {
		t.Error(err)
	}
	if _, err := new(drivers.Registry).Build(t.Context(), drivers.Task{Task: &api.Task{Driver: "echo"}}); err == nil {
		t.Error("an empty registry has a driver")
	}
}
