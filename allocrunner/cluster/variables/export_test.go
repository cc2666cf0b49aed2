package variables

// Now is this machine's clock of leases.
var Now = now
