package top

import "github.com/charmbracelet/x/ansi"

// style is how a part of the screen is shown, with the 16 colours of the terminal and without. Without colours the
// marks that matter stay: reverse and bold are no colours.
type style struct{ colour, plain ansi.Style }

var (
	none       = ansi.NewStyle()
	plainStyle = style{}

	// the title when something is wrong
	alarmStyle = style{none.ForegroundColor(ansi.BrightWhite).BackgroundColor(ansi.Red).Bold(), none.Reverse(true).Bold()}
	// headings of the table, values that stand out, and questions
	headStyle = style{none.Bold(), none.Bold()}
	// the chosen row, and the same while the arrows move elsewhere
	chosenStyle  = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Cyan), none.Reverse(true)}
	restingStyle = style{none.ForegroundColor(ansi.Cyan).Bold(), none.Bold()}
	// the panel that is shown, and the same when the arrows move in it
	tabStyle   = style{none.ForegroundColor(ansi.Cyan).Bold(), none.Bold()}
	focusStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Cyan), none.Reverse(true)}
	// what is well, what may become so, and what has failed
	goodStyle = style{none.ForegroundColor(ansi.Green), none}
	warnStyle = style{none.ForegroundColor(ansi.Yellow), none}
	badStyle  = style{none.ForegroundColor(ansi.Red), none.Bold()}
	// what matters less
	faintStyle = style{none.ForegroundColor(ansi.BrightBlack), none}
	// bars of CPU and memory
	cpuStyle    = style{none.ForegroundColor(ansi.Green), none}
	memoryStyle = style{none.ForegroundColor(ansi.Blue), none}
	// what was searched for
	matchStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow), none.Underline(true)}
	// the match that n and N left from
	currentStyle = style{none.ForegroundColor(ansi.Black).BackgroundColor(ansi.Yellow).Bold(), none.Reverse(true)}
)

func (m *Model) paint(s style, text string) string {
	if m.Terminal.Colour {
		s.plain = s.colour
	}
	if text == "" || len(s.plain) == 0 {
		return text
	}
	return s.plain.Styled(text)
}
