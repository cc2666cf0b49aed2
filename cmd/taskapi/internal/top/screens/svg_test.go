package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestSVG draws letters, styles, wide characters and bars where the terminal has them, and no text as markup.
func TestSVG(t *testing.T) {
	screen := parse("a\x1b[1;32mb\x1b[0m <&>\x1b[30;46m>x \x1b[m\x1b[7mr\x1b[27m\n界x─▁█│\n\x1b[46m>z\x1b[0m", 20, 4)
	for _, tc := range []struct {
		x, y int
		want place
	}{
		{0, 0, place{"a", usual}}, {1, 0, place{"b", look{2, -1, true}}}, {6, 0, place{">", look{0, 6, false}}},
		{9, 0, place{"r", look{inverse, inverse, false}}}, {0, 1, place{"界", usual}}, {1, 1, place{"", usual}},
		{2, 1, place{"x", usual}}, {19, 1, place{"", usual}},
		{19, 2, place{"", look{-1, 6, false}}}, {19, 3, place{"", usual}},
	} {
		if got := screen[tc.y][tc.x]; got != tc.want {
			t.Errorf("at %d, %d is %v, want %v", tc.x, tc.y, got, tc.want)
		}
	}
	drawn := string(svgOf(screen))
	for _, want := range []string{
		`<text class="i2 bold" x="20" y="25" textLength="8" lengthAdjust="spacingAndGlyphs">b</text>`,
		`>&lt;&amp;&gt;</text>`,
		`<rect class="p6" x="60" y="12" width="24" height="17"/>`,
		`<text class="ink" x="12" y="42" textLength="24" lengthAdjust="spacingAndGlyphs">界x</text>`,
		`prefers-color-scheme: dark`,
	} {
		if !strings.Contains(drawn, want) {
			t.Errorf("it has no %s\n%s", want, drawn)
		}
	}
	if strings.ContainsAny(drawn, "▁█─│") {
		t.Error("bars and lines are text, which fonts draw in other sizes")
	}
	for d := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
