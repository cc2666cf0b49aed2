package jobspec

// Decode is Parse without Canonicalize and without the server's defaults: what the text itself says.
var Decode = decode
