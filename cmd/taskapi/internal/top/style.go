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
	barStyle:     {ansi.NewStyle().Reverse(true), ansi.NewStyle().Reverse(true)},
	focusStyle:   {ansi.NewStyle().ForegroundColor(ansi.Black).BackgroundColor(ansi.Cyan), ansi.NewStyle().Reverse(true).Bold()},
	alarmStyle:   {ansi.NewStyle().ForegroundColor(ansi.BrightWhite).BackgroundColor(ansi.Red).Bold(), ansi.NewStyle().Reverse(true).Bold()},
	headStyle:    {ansi.NewStyle().Bold(), ansi.NewStyle().Bold()},
	chosenStyle:  {ansi.NewStyle().ForegroundColor(ansi.Black).BackgroundColor(ansi.Green), ansi.NewStyle().Bold()},
	badStyle:     {ansi.NewStyle().ForegroundColor(ansi.Red), ansi.NewStyle().Bold()},
	faintStyle:   {ansi.NewStyle().ForegroundColor(ansi.Cyan), ansi.NewStyle()},
	matchStyle:   {ansi.NewStyle().ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow), ansi.NewStyle().Underline(true)},
	currentStyle: {ansi.NewStyle().ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow).Bold(), ansi.NewStyle().Reverse(true)},
	askStyle:     {ansi.NewStyle().Bold(), ansi.NewStyle().Bold()},
}

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
