package apierror

// Kinds returns all kinds but Internal.
func Kinds() []Kind { return kinds }
