package agent

import (
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/identity"
)

// OpenVariables returns the variables of a store, sealed by the ring's seal key.
func OpenVariables(store cluster.Store, ring *identity.Keyring) (*variables.Service, error) {
	sealer, err := ring.Sealer("variables")
	if err != nil {
		return nil, err
	}
	return variables.New(variables.Config{Store: store, Sealer: sealer}), nil
}
