package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// look is how a place of a screen looks: its colours are those of the terminal, 0 to 15, or -1 for the usual one.
type look struct {
	ink, paper int
	bold       bool
}

var usual = look{ink: -1, paper: -1}

// place is a character of a screen. The place after a wide one is empty.
type place struct {
	text string
	look look
}

// parse reads a screen as tmux captures it with its styles. Rows that are missing are empty.
func parse(text string, width, height int) [][]place {
	screen := make([][]place, height)
	now, reverse := usual, false
	for y := range screen {
		screen[y] = slices.Repeat([]place{{look: usual}}, width)
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		x := 0
		for len(line) > 0 {
			if codes, n := styleCodes(line); n > 0 {
				now, reverse = apply(now, reverse, codes)
				line = line[n:]
				continue
			}
			cluster, wide := ansi.FirstGraphemeCluster(line, ansi.WcWidth)
			if x < width {
				shown := now
				if reverse {
					shown.ink, shown.paper = now.paper, now.ink
					if shown.paper < 0 {
						shown.ink, shown.paper = inverse, inverse
					}
				}
				screen[y][x] = place{cluster, shown}
			}
			x += max(wide, 1)
			line = line[len(cluster):]
		}
		for ; x < width && screen[y][0].look.paper >= 0; x++ { // tmux leaves out the cleared end of a coloured row
			screen[y][x].look = screen[y][0].look
		}
	}
	return screen
}

// inverse stands for the usual colours, exchanged.
const inverse = 16

// styleCodes returns the codes of a style sequence at the beginning of a text, and its length, 0 for none.
func styleCodes(text string) (codes []string, n int) {
	if !strings.HasPrefix(text, "\x1b[") {
		return nil, 0
	}
	end := strings.IndexByte(text, 'm')
	if end < 0 {
		return nil, 0
	}
	return strings.Split(text[2:end], ";"), end + 1
}

func apply(l look, reverse bool, codes []string) (look, bool) {
	for _, code := range codes {
		switch n, _ := strconv.Atoi(code); { // an empty code is 0
		case n == 0:
			l, reverse = usual, false
		case n == 1:
			l.bold = true
		case n == 22:
			l.bold = false
		case n == 7:
			reverse = true
		case n == 27:
			reverse = false
		case n >= 30 && n <= 37:
			l.ink = n - 30
		case n == 39:
			l.ink = -1
		case n >= 40 && n <= 47:
			l.paper = n - 40
		case n == 49:
			l.paper = -1
		case n >= 90 && n <= 97:
			l.ink = n - 90 + 8
		}
	}
	return l, reverse
}

// The size of a place, and the room around the screen.
const (
	placeWide = 8
	placeHigh = 17
	baseline  = 13
	margin    = 12
)

// palette are the terminal's colours for light pages and for dark ones: the 16 colours, then ink and paper.
var palette = [][2]string{
	{"#24292f", "#0d1117"}, {"#cf222e", "#ff7b72"}, {"#1a7f37", "#3fb950"}, {"#9a6700", "#d29922"},
	{"#0969da", "#58a6ff"}, {"#8250df", "#bc8cff"}, {"#1b7c83", "#39c5cf"}, {"#6e7781", "#b1bac4"},
	{"#6e7781", "#8b949e"}, {"#a40e26", "#ffa198"}, {"#2da44e", "#56d364"}, {"#bf8700", "#e3b341"},
	{"#218bff", "#79c0ff"}, {"#a475f9", "#d2a8ff"}, {"#3192aa", "#56d4dd"}, {"#ffffff", "#ffffff"},
}

const (
	lightInk, darkInk     = "#24292f", "#e6edf3"
	lightPaper, darkPaper = "#ffffff", "#0d1117"
	lightEdge, darkEdge   = "#d0d7de", "#30363d"
)

// chosenPaper are backgrounds, on which black letters stand in both.
var chosenPaper = map[int][2]string{6: {"#b6e3f4", "#39c5cf"}}

// svgOf draws a screen. It looks like a terminal on light pages and on dark ones, which the reader's program says.
func svgOf(screen [][]place) []byte {
	var b bytes.Buffer
	wide, high := len(screen[0])*placeWide+2*margin, len(screen)*placeHigh+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `,
		wide, high, wide, high)
	fmt.Fprintf(&b, "font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace\" "+
		"font-size=\"13.2\">\n<style>\n%s@media (prefers-color-scheme: dark) {\n%s}\n</style>\n", sheet(0), sheet(1))
	fmt.Fprintf(&b, "<rect class=\"edge\" x=\".5\" y=\".5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", wide-1, high-1)
	for y, row := range screen {
		for x := 0; x < len(row); {
			end := x + 1
			for end < len(row) && row[end].look == row[x].look && glyph(row[end].text) == glyph(row[x].text) {
				end++
			}
			drawRun(&b, row[x:end], margin+x*placeWide, margin+y*placeHigh)
			x = end
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// sheet returns the styles for light pages, or for dark ones.
func sheet(of int) string {
	var b strings.Builder
	ink, paper := []string{lightInk, darkInk}[of], []string{lightPaper, darkPaper}[of]
	fmt.Fprintf(&b, "text { fill: %s; white-space: pre } .edge { fill: %s; stroke: %s } .ink { fill: %s }\n",
		ink, paper, []string{lightEdge, darkEdge}[of], ink)
	fmt.Fprintf(&b, ".bold { font-weight: bold } .i%d { fill: %s } .p%d { fill: %s }\n", inverse, paper, inverse, ink)
	for i, c := range palette {
		back := c[of]
		if special, ok := chosenPaper[i]; ok {
			back = special[of]
		}
		fmt.Fprintf(&b, ".i%d { fill: %s } .p%d { fill: %s }\n", i, c[of], i, back)
	}
	return b.String()
}

// blocks are the bars, from the lowest to the highest.
const blocks = "▁▂▃▄▅▆▇█"

// glyph says which characters are drawn as shapes, since fonts draw them in other sizes: one by one, or as a line.
func glyph(text string) string {
	switch {
	case text == "─" || text == "│":
		return text
	case text != "" && strings.Contains(blocks, text):
		return "block"
	}
	return ""
}

func drawRect(b *bytes.Buffer, class string, x int, y float64, wide int, high float64) {
	tenths := func(n float64) float64 { return math.Round(n*10) / 10 }
	fmt.Fprintf(b, "<rect class=\"%s\" x=\"%d\" y=\"%g\" width=\"%d\" height=\"%g\"/>\n", class, x, tenths(y), wide,
		tenths(high))
}

// drawRun draws places that look alike, with the left upper corner of the first one.
func drawRun(b *bytes.Buffer, run []place, x, y int) {
	l, wide := run[0].look, len(run)*placeWide
	if l.paper >= 0 {
		drawRect(b, fmt.Sprintf("p%d", l.paper), x, float64(y), wide, placeHigh)
	}
	class := "ink"
	if l.ink >= 0 {
		class = fmt.Sprintf("i%d", l.ink)
	}
	switch glyph(run[0].text) {
	case "─":
		drawRect(b, class, x, float64(y+placeHigh/2), wide, 1)
		return
	case "│":
		drawRect(b, class, x+placeWide/2, float64(y), 1, placeHigh)
		return
	case "block":
		for i, p := range run {
			level := float64(strings.Index(blocks, p.text)/len("▁")+1) / 8 * (placeHigh - 3)
			drawRect(b, class, x+i*placeWide, float64(y+placeHigh-2)-level, placeWide-1, level)
		}
		return
	}
	var text strings.Builder
	for _, p := range run {
		text.WriteString(p.text)
	}
	shown := strings.TrimRight(text.String(), " ")
	if shown == "" {
		return
	}
	left := shown[:len(shown)-len(strings.TrimLeft(shown, " "))]
	shown = shown[len(left):]
	if l.bold {
		class += " bold"
	}
	fmt.Fprintf(b, "<text class=\"%s\" x=\"%d\" y=\"%d\" textLength=\"%d\" lengthAdjust=\"spacingAndGlyphs\">", class,
		x+len(left)*placeWide, y+baseline, ansi.StringWidthWc(shown)*placeWide)
	_ = xml.EscapeText(b, []byte(shown)) // into memory
	b.WriteString("</text>\n")
}
