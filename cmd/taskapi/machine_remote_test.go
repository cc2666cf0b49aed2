package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

// authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil
	a.sign(t, "ca", a.cert)
	return a
}

// sign writes a certificate and its key into files.
func (a *authority) sign(t *testing.T, name string, what *x509.Certificate) (cert, key string) {
	t.Helper()
	own := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	if a.key == nil {
		a.key = own
	}
	raw := must.Get(x509.CreateCertificate(rand.Reader, what, a.cert, own.Public(), a.key))(t)
	private := must.Get(x509.MarshalPKCS8PrivateKey(own))(t)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	must.OK(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600))
	must.OK(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return cert, key
}

// leaf signs a certificate of a server at this machine, or of a client.
func (a *authority) leaf(t *testing.T, name string, usage x509.ExtKeyUsage) (cert, key string) {
	t.Helper()
	return a.sign(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
}

// TestAgentsRemoteDoor: from another machine, a client needs a certificate of the authority and the token.
func TestAgentsRemoteDoor(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "ours"), newAuthority(t, "another")
	cert, key := ca.leaf(t, "server", x509.ExtKeyUsageServerAuth)
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t, 21000, 31000))
	audit := filepath.Join(t.TempDir(), "audit.log")
	a := startAgent(t, shortDir(t), "--listen", address, "--cert", cert, "--key", key, "--ca",
		filepath.Join(ca.dir, "ca.pem"), "-o", "audit.path="+audit)
	for i := range 320 { // connections from eight addresses that send nothing keep nobody else from being answered
		stranger := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%8))}}
		defer must.Get(stranger.Dial("tcp", address))(t).Close()
	}
	cert, key = ca.leaf(t, "idle", x509.ExtKeyUsageClientAuth)
	idle := &tls.Config{Certificates: []tls.Certificate{must.Get(tls.LoadX509KeyPair(cert, key))(t)},
		InsecureSkipVerify: true} //nolint:gosec // it sends no secret
	for range 300 { // nor do those of a client with a certificate that sends no token
		defer must.Get(tls.Dial("tcp", address, idle))(t).Close()
	}
	token := must.Get(os.ReadFile(filepath.Join(a.data, "operator.token")))(t)
	for range 300 { // nor those that are idle after a request with the token, which may have expired meanwhile
		conn := must.Get(tls.Dial("tcp", address, idle))(t)
		defer conn.Close()
		must.Get(fmt.Fprintf(conn, "GET /v1/regions HTTP/1.1\r\nHost: agent\r\nX-Nomad-Token: %s\r\n\r\n", token))(t)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("beside idle connections: %v, %v", answer, err)
		}
		must.OK(t, answer.Body.Close())
	}
	client := func(from *authority, token string) *api.Client {
		config := &api.Config{Address: "https://" + address, SecretID: token, TLSConfig: &api.TLSConfig{
			CACert: filepath.Join(ca.dir, "ca.pem"),
		}}
		if from != nil {
			config.TLSConfig.ClientCert, config.TLSConfig.ClientKey = from.leaf(t, "client", x509.ExtKeyUsageClientAuth)
		}
		c := must.Get(api.NewClient(config))(t)
		t.Cleanup(c.Close)
		return c
	}
	if _, _, err := client(ca, string(token)).Jobs().List(nil); err != nil {
		t.Errorf("with a certificate and the token: %v", err)
	}
	for what, c := range map[string]*api.Client{
		"a certificate alone": client(ca, ""),
		"a wrong token":       client(ca, strings.Repeat("x", 100)),
	} {
		if _, _, err := c.Jobs().List(nil); answeredStatus(err)/100 != 4 {
			t.Errorf("%s: %v", what, err)
		}
	}
	denied, err := os.ReadFile(audit)
	if err != nil || !strings.Contains(string(denied), `"address":"127.0.0.1:`) ||
		!strings.Contains(string(denied), `"certificate":"client"`) {
		t.Errorf("the audit log has %s, %v", denied, err)
	}
	for what, c := range map[string]*api.Client{
		"the token alone":                    client(nil, string(token)),
		"a certificate of another authority": client(other, string(token)),
	} {
		if _, _, err := c.Jobs().List(nil); err == nil || answeredStatus(err) != 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	plain, err := http.Get("http://" + address + "/v1/jobs") //nolint:noctx // it is answered, or not
	if err == nil {
		defer plain.Body.Close()
		if plain.StatusCode == http.StatusOK {
			t.Error("a client without TLS is answered")
		}
	}
	old := &tls.Config{MaxVersion: tls.VersionTLS11, InsecureSkipVerify: true} //nolint:gosec // that is the test
	if conn, err := tls.Dial("tcp", address, old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	for _, flags := range [][]string{{"--listen", address}, {"--cert", cert}, {"--listen", "here", "--cert", cert, "--key",
		key, "--ca", cert}} {
		if out := a.taskapi(append([]string{"agent"}, flags...)...); !strings.Contains(out, "taskapi: --") {
			t.Errorf("%q prints %s", flags, out)
		}
	}
}

const parentJob = `job "resize" {
  type = "batch"
  parameterized {}
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// TestAgentShowsChildren: a dispatch starts a child, which its evaluation names and its parent counts. The stream has
// the events of all allocations, in the order of one index.
func TestAgentShowsChildren(t *testing.T) {
	t.Parallel()
	a := startAgent(t, shortDir(t))
	client := a.client()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := must.Get(client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicAllocation: {"*"}}, 0, nil))(t)
	a.register(parsedJob(t, parentJob))
	made := asked(client.Jobs().Dispatch("resize", nil, nil, "", nil))(t)
	e, _, err := client.Evaluations().Info(made.EvalID, nil)
	if err != nil || e.JobID != made.DispatchedJobID {
		t.Errorf("the evaluation of the dispatch is %+v, %v", e, err)
	}
	until(t, a.taskapiProcess, "counts the child", func() bool {
		jobs, _, err := client.Jobs().List(&api.QueryOptions{Prefix: "resize"})
		return err == nil && len(jobs) == 2 && jobs[0].JobSummary.Children.Running == 1 && jobs[1].ParentID == "resize"
	})
	var last uint64
	seen := map[string]bool{}
	overdue := time.After(deadline)
	for !seen["resize"] || !seen[made.DispatchedJobID] {
		select {
		case batch := <-stream:
			if batch.Err != nil {
				t.Fatal(batch.Err)
			}
			if batch.Index != 0 && batch.Index <= last {
				t.Errorf("the index goes from %d to %d", last, batch.Index)
			}
			last = max(last, batch.Index)
			for _, event := range batch.Events {
				alloc := must.Get(event.Allocation())(t)
				seen[alloc.JobID] = true
			}
		case <-overdue:
			t.Fatalf("the stream has the jobs %v", seen)
		}
	}
	node := must.Get(client.Agent().Self())(t)
	allocs, _, err := client.Nodes().Allocations(node.Stats["client"]["node_id"], nil)
	if err != nil || len(allocs) != 1 || allocs[0].JobID != made.DispatchedJobID || allocs[0].Resources == nil {
		t.Errorf("the node has the allocations %+v, %v", allocs, err)
	}
	text := must.Get(client.Raw().Response("/v1/metrics?format=prometheus", nil))(t)
	defer text.Close()
	asked(client.Jobs().Deregister(made.DispatchedJobID, false, nil))(t)
}
