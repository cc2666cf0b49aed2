package consul

import "time"

// Hasten has rounds without a reason come soon.
func (p *Provider) Hasten() { p.period = 300 * time.Millisecond }

// Wait is what a Provider waits.
var Wait = wait

// MaxAnswer is the most that an agent may answer.
const MaxAnswer = maxAnswer
