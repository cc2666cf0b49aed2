package services

import (
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/handlers/internal/route"
)

// choice asks for some of a service's registrations: see registry.Choose.
type choice struct {
	most int
	key  string
}

// choiceOf reads ?choose=; nil without it.
func choiceOf(text string) (*choice, error) {
	if text == "" {
		return nil, nil
	}
	number, key, _ := strings.Cut(text, "|")
	most, err := strconv.ParseUint(number, 10, 31)
	if err != nil || key == "" {
		const right = "failed to choose services: Parameter for choose must be in form '<number>|<key>', not %s"
		return nil, route.Invalid(right, route.Clip(text))
	}
	return &choice{int(most), key}, nil
}

func (c *choice) from(all []*api.ServiceRegistration) []*api.ServiceRegistration {
	return registry.Choose(all, c.most, c.key)
}
