package faults_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"taskapi/handlers/faults"
)

// FuzzParse: whatever a file holds, it is refused as an ErrFault or its faults can be had, and met by a request.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"faults": [{"status": 503}, {"path": "/v1/*", "skip": 1, "times": 2, "status": 429, "retry_after": "1s"}, ` +
			`{"cut": true, "method": "GET"}]}`,
		`{"faults": [{"tear": true, "path": "/v1/"}, {"task": "web", "hang": true, "always": true}]}`,
		`{"faults": [{"path": "/["}]}`, `{"faults": null}`, `{}`, ``, `[`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		found, err := faults.Parse(src)
		if err != nil {
			if !errors.Is(err, faults.ErrFault) || found != nil {
				t.Fatalf("%+v, %v", found, err)
			}
			return
		}
		for i := range found {
			found[i].Delay = 0
		}
		set := new(faults.Set)
		for _, one := range found {
			if one.Status == 0 && !one.Hang && !one.Cut && !one.Tear { // it was a delay alone
				continue
			}
			if err := set.Add(one); err != nil {
				t.Fatalf("%+v: %v", one, err)
			}
		}
		for range 3 {
			status, answer := set.Next(httptest.NewRequest(http.MethodGet, "/v1/regions", http.NoBody), web)
			if answer == nil && status != 0 || status != 0 && (status < 200 || status > 599) {
				t.Fatalf("status %d, %v", status, answer != nil)
			}
		}
	})
}
