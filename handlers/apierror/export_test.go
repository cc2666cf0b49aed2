package apierror

// Kinds is how many kinds there are.
const Kinds = kinds
