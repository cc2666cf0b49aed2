package wire

import (
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/crypto/blake2b"
)

// Namespace adds what the SDK lacks.
type Namespace struct {
	*api.Namespace
	Hash []byte
}

// NamespaceOf returns a namespace that has no more than its name and a description, with its hash.
func NamespaceOf(n *api.Namespace) *Namespace { return &Namespace{n, hash(n.Name, n.Description)} }

// ACLToken adds what the SDK lacks, and has none of the SDK's methods.
type ACLToken struct {
	aclToken
	ExpirationTTL string // of a request
	Hash          []byte
}

type aclToken api.ACLToken

// ACLTokenStub adds what the SDK lacks.
type ACLTokenStub struct {
	*api.ACLTokenListStub
	Hash []byte
}

// ACLTokenOf returns a global token without policies and roles, with its hash.
func ACLTokenOf(t *api.ACLToken) *ACLToken {
	return &ACLToken{aclToken: aclToken(*t), Hash: hash(t.Name, t.Type, "global")}
}

// ACLTokenStubOf returns such a token as a list has it.
func ACLTokenStubOf(t *api.ACLToken) *ACLTokenStub {
	return &ACLTokenStub{&api.ACLTokenListStub{
		AccessorID: t.AccessorID, Name: t.Name, Type: t.Type, Global: t.Global, CreateTime: t.CreateTime,
		ExpirationTime: t.ExpirationTime,
	}, ACLTokenOf(t).Hash}
}

// hash returns the hash that Nomad has for an object with these values.
func hash(values ...string) []byte {
	sum := blake2b.Sum256([]byte(strings.Join(values, "")))
	return sum[:]
}
