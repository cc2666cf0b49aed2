package memory

var (
	OpenTracker     = openTracker
	ProgramMappings = programMappings
)

// Start and Length of a mapping.
func (m mapping) Start() uintptr  { return m.start }
func (m mapping) Length() uintptr { return m.length }
