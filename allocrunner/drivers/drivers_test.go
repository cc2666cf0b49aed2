package drivers_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// eager is a driver that says that it has started everything.
type eager struct{ can drivers.Capabilities }

func (eager) Name() string                         { return "eager" }
func (d eager) Capabilities() drivers.Capabilities { return d.can }
func (eager) Fingerprint() drivers.Fingerprint     { return drivers.Fingerprint{} }
func (eager) Validate(map[string]any) error        { return nil }

func (eager) Start(context.Context, drivers.Task) (drivers.Run, error) { return nil, nil }

func (eager) Recover(context.Context, drivers.Task, interfaces.Handle) (drivers.Run, error) {
	return nil, drivers.ErrNoRun
}

// TestStartWantsCapabilities: what a task's driver can't give to it keeps it from starting, and what the driver can
// give does not.
func TestStartWantsCapabilities(t *testing.T) {
	cases := map[string]struct {
		task drivers.Task
		want string
	}{
		"Mounts": {drivers.Task{Mounts: make([]interfaces.Mount, 1)},
			"a mount: give the task the machine's own path"},
		"Devices": {drivers.Task{Devices: make([]interfaces.Device, 1)}, "a device"},
		"Network": {drivers.Task{NetworkNamespace: "/run/netns/x"}, "a network namespace"},
		"Users": {drivers.Task{User: interfaces.User{Name: "somebody", UID: 4242}},
			"a user other than this program's"},
		"Foreground": {drivers.Task{Foreground: &interfaces.Foreground{}}, "this terminal"},
	}
	for field := range reflect.TypeFor[drivers.Capabilities]().Fields() {
		c, ok := cases[field.Name]
		if !ok {
			t.Errorf("no case for %s", field.Name)
		}
		c.task.Task = &api.Task{Driver: "eager"}
		_, err := drivers.NewRegistry(eager{}).Start(t.Context(), c.task)
		want := `the driver "eager" can't give a task ` + c.want
		if start, ok := errors.AsType[*drivers.StartError](err); !ok || start.Reason != want ||
			!errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("got %v, want %s", err, want)
		}
		var can drivers.Capabilities
		reflect.ValueOf(&can).Elem().FieldByIndex(field.Index).SetBool(true)
		if _, err := drivers.NewRegistry(eager{can}).Start(t.Context(), c.task); err != nil {
			t.Errorf("%s: %v", field.Name, err)
		}
	}
}

func TestUnknownDriver(t *testing.T) {
	_, err := drivers.NewRegistry(eager{}).Get("docker")
	if unknown, ok := errors.AsType[*drivers.UnknownError](err); !ok ||
		unknown.Error() != `the driver "docker" is not here; there is: eager` {
		t.Error(err)
	}
	if _, err := new(drivers.Registry).Start(t.Context(), drivers.Task{Task: &api.Task{Driver: "eager"}}); err == nil {
		t.Error("an empty registry has a driver")
	}
}
