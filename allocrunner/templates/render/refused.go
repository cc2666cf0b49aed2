package render

import (
	"strings"
	"sync"
)

// Refused returns the functions that consul-template has and templates have not here, with the reason. A job whose
// template names one is refused; a template that is read from a file fails when it calls one.
func Refused() map[string]string { return refused() }

var refused = sync.OnceValue(func() map[string]string {
	reasons := map[string]string{}
	for why, names := range map[string]string{
		"function is disabled": "plugin writeToFile",
		"templates read the keys and services of Consul alone": "caLeaf caRoots connect datacenters exportedServices " +
			"importedServices node nodes partitions peerings",
		"it is for debugging": "spew_dump spew_printf spew_sdump spew_sprintf",
		"sprig's functions for versions, decimal numbers, certificates, passwords and typesetting are not here": "" +
			"sprig_abbrev sprig_abbrevboth sprig_add1f sprig_addf sprig_bcrypt sprig_buildCustomCert sprig_decryptAES " +
			"sprig_deepCopy sprig_derivePassword sprig_divf sprig_encryptAES sprig_genCA sprig_genCAWithKey " +
			"sprig_genPrivateKey sprig_genSelfSignedCert sprig_genSelfSignedCertWithKey sprig_genSignedCert " +
			"sprig_genSignedCertWithKey sprig_htpasswd sprig_initials sprig_mulf sprig_mustDeepCopy sprig_semver " +
			"sprig_semverCompare sprig_subf sprig_swapcase sprig_untitle sprig_wrap sprig_wrapWith",
	} {
		for name := range strings.FieldsSeq(names) {
			reasons[name] = why
		}
	}
	return reasons
})
