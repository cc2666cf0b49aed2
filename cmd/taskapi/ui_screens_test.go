package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"taskapi/internal/must"
)

var uiScreens = flag.Bool("ui-screens", false, "write the pictures of docs/screens/ui-*.png")

// TestUIScreens writes the pictures of docs/ui.md.
func TestUIScreens(t *testing.T) {
	if !*uiScreens {
		t.Skip("writes pictures only with -ui-screens: see 'make screens'")
	}
	b := newBrowser(t)
	p := startUI(t, startRun(t, shortDir(t), uiJob))
	b.looks(1280, "light")
	b.open(p.link())
	b.until(`document.querySelector("#allocs a")?.textContent === "shop.web[0]"`)
	b.get(`document.querySelector("#allocs a").click()`)
	b.until(`document.querySelectorAll("#tasks polyline")[1]?.points.length > 40`) // which takes 80 seconds
	for _, size := range []struct{ width, height int }{{390, 1560}, {1280, 1000}} {
		for _, scheme := range []string{"light", "dark"} {
			b.looks(size.width, scheme)
			b.get(`document.getElementById("output").scrollTop = 1e6`)
			small := fewColours(t, b.picture(size.width, size.height))
			name := filepath.Join("../../docs/screens", fmt.Sprintf("ui-%d-%s.png", size.width, scheme))
			if len(small) > 60<<10 {
				t.Errorf("%s has %d bytes", name, len(small))
			}
			must.OK(t, os.WriteFile(name, small, 0o644))
		}
	}
}

// fewColours returns a picture with the 256 most frequent of its colours, and each other one as the nearest of these.
func fewColours(t *testing.T, data []byte) []byte {
	t.Helper()
	from := must.Get(png.Decode(bytes.NewReader(data)))(t)
	counts := map[color.Color]int{}
	bounds := from.Bounds()
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			counts[from.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int {
		return cmp.Compare(counts[b], counts[a])
	})
	palette := color.Palette(colours[:min(len(colours), 256)])
	to, nearest := image.NewPaletted(bounds, palette), map[color.Color]uint8{}
	for c := range counts {
		nearest[c] = uint8(palette.Index(c))
	}
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	var b bytes.Buffer
	must.OK(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, to))
	return b.Bytes()
}
