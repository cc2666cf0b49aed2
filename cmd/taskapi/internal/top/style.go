package top

import "github.com/charmbracelet/x/ansi"

// style is how a part of the screen is shown, with the 16 colours of the terminal and without. Without colours the
// marks that matter stay: reverse and bold are no colours.
type style struct{ colour, plain ansi.Style }

var (
	none       = ansi.NewStyle()
	plainStyle = style{}

	// title and panel bars
	barStyle = style{none.Reverse(true), none.Reverse(true)}
	// the bar of the panel that the arrows move in
	focusStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Cyan), none.Reverse(true).Bold()}
	// the title when something is wrong
	alarmStyle = style{none.ForegroundColor(ansi.BrightWhite).BackgroundColor(ansi.Red).Bold(), none.Reverse(true).Bold()}
	// headings of the table, and questions
	headStyle = style{none.Bold(), none.Bold()}
	// the chosen task
	chosenStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Green), none.Bold()}
	// what has failed
	badStyle = style{none.ForegroundColor(ansi.Red), none.Bold()}
	// what matters less
	faintStyle = style{none.ForegroundColor(ansi.Cyan), none}
	// what was searched for
	matchStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow), none.Underline(true)}
	// the match that n and N left from
	currentStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow).Bold(), none.Reverse(true)}
)

// paint shows a text in a style.
func (m *Model) paint(s style, text string) string {
	if m.Terminal.Colour {
		s.plain = s.colour
	}
	if text == "" || len(s.plain) == 0 {
		return text
	}
	return s.plain.Styled(text)
}
