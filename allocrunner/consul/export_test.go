package consul

import "time"

// Hasten has rounds without a reason come soon.
func (p *Provider) Hasten() { p.period = 300 * time.Millisecond }

// Patient has calls wait for the agent for longer than a busy machine takes to answer.
func (p *Provider) Patient() { p.settle = time.Minute }

// BoundAnswers has longer answers than this refused, in bytes. It comes before Run.
func (p *Provider) BoundAnswers(longest int64) { p.client.longest = longest }
