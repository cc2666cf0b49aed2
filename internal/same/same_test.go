package same_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"taskapi/internal/same"
)

// told counts what a test is told.
type told int

func (*told) Helper()                 {}
func (n *told) Errorf(string, ...any) { *n++ }

// TestHelpers: each tells of what is wrong, and of nothing else.
func TestHelpers(t *testing.T) {
	of := fmt.Errorf("late: %w", io.EOF)
	for i, c := range []struct {
		do   func(tb same.TB)
		want told
	}{
		{func(tb same.TB) { same.As(tb, []int{1}, []int{1}) }, 0},
		{func(tb same.TB) { same.As(tb, []int{1}, []int{2}) }, 1},
		{func(tb same.TB) { same.Error(tb, io.EOF, of) }, 0},
		{func(tb same.TB) { same.Error(tb, io.EOF, errors.New("EOF")) }, 1},
		{func(tb same.TB) { same.Error(tb, nil, of) }, 1},
		{func(tb same.TB) { same.Says(tb, nil, "late", of); same.Says(tb, io.EOF, "late", of) }, 0},
		{func(tb same.TB) { same.Says(tb, nil, "early", of); same.Says(tb, io.ErrNoProgress, "late", of) }, 2},
		{func(tb same.TB) { same.Says(tb, nil, "", nil); same.Fails(tb, nil) }, 2},
		{func(tb same.TB) { same.Fails(tb, of) }, 0},
	} {
		var got told
		if c.do(&got); got != c.want {
			t.Errorf("%d: told %d times, want %d", i, got, c.want)
		}
	}
}
