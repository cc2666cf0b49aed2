package slice_test

import (
	"slices"
	"strconv"
	"testing"

	"taskapi/internal/slice"
)

func TestMap(t *testing.T) {
	if got := slice.Map([]int{2, 1}, strconv.Itoa); !slices.Equal(got, []string{"2", "1"}) {
		t.Errorf("got %q", got)
	}
	if got := slice.Map([]int{}, strconv.Itoa); got != nil {
		t.Errorf("without elements: got %q", got)
	}
}
