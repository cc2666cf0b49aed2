package top

import "github.com/charmbracelet/x/ansi"

// style is how a part of the screen is shown. Without colours the marks that matter stay: reverse and bold are no
// colours.
type style int

const (
	plainStyle   style = iota
	barStyle           // title and panel bars
	focusStyle         // the bar of the panel that the arrows move in
	alarmStyle         // the title when something is wrong
	headStyle          // headings of the table
	chosenStyle        // the chosen task
	badStyle           // what has failed
	faintStyle         // what matters less
	matchStyle         // what was searched for
	currentStyle       // the match that n and N left from
	askStyle           // questions
)

// styles are those with colours, by the 16 of the terminal, and those without.
var styles = map[style]struct{ colour, plain ansi.Style }{
	barStyle:     {none.Reverse(true), none.Reverse(true)},
	focusStyle:   {none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Cyan), none.Reverse(true).Bold()},
	alarmStyle:   {none.ForegroundColor(ansi.BrightWhite).BackgroundColor(ansi.Red).Bold(), none.Reverse(true).Bold()},
	headStyle:    {none.Bold(), none.Bold()},
	chosenStyle:  {none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Green), none.Bold()},
	badStyle:     {none.ForegroundColor(ansi.Red), none.Bold()},
	faintStyle:   {none.ForegroundColor(ansi.Cyan), none},
	matchStyle:   {none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow), none.Underline(true)},
	currentStyle: {none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow).Bold(), none.Reverse(true)},
	askStyle:     {none.Bold(), none.Bold()},
}

var none = ansi.NewStyle()

// paint shows a text in a style.
func (m *Model) paint(s style, text string) string {
	found, ok := styles[s]
	switch {
	case !ok || text == "":
		return text
	case m.Terminal.Colour:
		return found.colour.Styled(text)
	}
	return found.plain.Styled(text)
}
