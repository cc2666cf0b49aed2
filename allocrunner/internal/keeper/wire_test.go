package keeper

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestSpecArrivesWhole: each of its fields, also those that a later version adds, and text that is no UTF-8.
func TestSpecArrivesWhole(t *testing.T) {
	var spec drivers.Spec
	fill(t, reflect.ValueOf(&spec).Elem(), new(int))
	spec.Path, spec.Dir = "/bin/\xff", "/dir/\xfe"
	spec.Args, spec.Env = append(spec.Args, "\xfd"), append(spec.Env, "A=\xfc")
	var wire bytes.Buffer
	must.OK(t, (&frameWriter{w: &wire}).write(request{ID: 1, Op: opStart, Spec: packSpec(spec)}))
	var got request
	must.OK(t, readFrame(&wire, &got))
	same.As(t, spec, got.Spec.unpack())
}

// timedConn notes what is done to a connection.
type timedConn struct {
	net.Conn
	mu    sync.Mutex // guards the field below
	calls []string
}

func (c *timedConn) note(call string) {
	c.mu.Lock()
	c.calls = append(c.calls, call)
	c.mu.Unlock()
	runtime.Gosched()
}

func (c *timedConn) SetWriteDeadline(time.Time) error { c.note("deadline"); return nil }

func (c *timedConn) Write(p []byte) (int, error) { c.note("write"); return len(p), nil }

// TestEachMessageHasItsTime: it begins when the ones before are written. One who takes thousands that wait needs longer
// than for one.
func TestEachMessageHasItsTime(t *testing.T) {
	conn := new(timedConn)
	out := &frameWriter{w: conn, most: helloTime}
	var writers sync.WaitGroup
	for range 100 {
		writers.Go(func() {
			if err := out.write(hello{}); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	for i, call := range conn.calls {
		if want := []string{"deadline", "write"}[i%2]; call != want {
			t.Fatalf("call %d is %s, want %s: %v", i, call, want, conn.calls[:i+1])
		}
	}
	if len(conn.calls) != 200 {
		t.Errorf("%d calls", len(conn.calls))
	}
}

// fill gives everything in v a value of its own.
func fill(t *testing.T, v reflect.Value, last *int) {
	t.Helper()
	*last++
	switch v.Kind() {
	case reflect.Struct:
		for at, field := range v.Fields() {
			if at.Type == reflect.TypeFor[[]*os.File]() { // those come beside it
				continue
			}
			fill(t, field, last)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), last)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *last))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*last))
	case reflect.Uint32:
		v.SetUint(uint64(*last))
	default:
		t.Fatalf("give a value to a %v, too", v.Type())
	}
}
