package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

//go:embed computed.json
var computedFile []byte

// What Google adds to a resource: by its type ("data.TYPE" of a data source), then by the attribute's path without indexes, a
// template or a list of them. In a template {NAME} is another attribute, or {BLOCK.NAME} one of a nested block, {digits:NAME:N} a number of N digits that depends on that
// attribute alone, and {number} that of the project. What has no template stays null, so that who uses it finds out.
type catalogue map[string]map[string]any

func newCatalogue() (catalogue, error) {
	var out catalogue
	err := json.Unmarshal(computedFile, &out)
	return out, err
}

var placeholder = regexp.MustCompile(`\{([a-z_0-9.]+)(?::([a-z_0-9]+):(\d+))?\}`)

// Leaves unknown what is only known once Google has made it.
func (s *server) plan(kind string, schema *tfprotov5.Schema, value tftypes.Value) (tftypes.Value, error) {
	return tftypes.Transform(value, func(path *tftypes.AttributePath, v tftypes.Value) (tftypes.Value, error) {
		name := dotted(path)
		if !v.IsNull() || name == "" {
			return v, nil
		}
		if given, there := s.defaults[name]; there && computedAt(schema.Block, name) {
			return tftypes.NewValue(tftypes.String, given), nil
		}
		if _, there := s.computed[kind][name]; there || name == "id" {
			return tftypes.NewValue(v.Type(), tftypes.UnknownValue), nil
		}
		return v, nil
	})
}

func (s *server) apply(kind string, schema *tfprotov5.Schema, value tftypes.Value) (tftypes.Value, error) {
	fields := map[string]tftypes.Value{}
	if err := value.As(&fields); err != nil {
		return value, err
	}
	made := maker{kind: kind, fields: fields, templates: s.computed[kind], defaults: s.defaults}
	return tftypes.Transform(value, func(path *tftypes.AttributePath, v tftypes.Value) (tftypes.Value, error) {
		if v.IsKnown() {
			return v, nil
		}
		name := dotted(path)
		template, there := made.templates[name]
		if !there && name == "id" {
			template, there = "{digits:id:18}", true
		}
		if !there {
			return tftypes.NewValue(v.Type(), nil), nil
		}
		return made.value(v.Type(), template, 0)
	})
}

type maker struct {
	kind      string
	fields    map[string]tftypes.Value
	templates map[string]any
	defaults  map[string]string
}

func (m maker) value(kind tftypes.Type, template any, depth int) (tftypes.Value, error) {
	if list, ok := template.([]any); ok {
		var element tftypes.Type = tftypes.String
		values := []tftypes.Value{}
		for _, each := range list {
			value, err := m.value(element, each, depth)
			if err != nil {
				return value, err
			}
			values = append(values, value)
		}
		return tftypes.NewValue(kind, values), nil
	}
	text, err := m.expand(fmt.Sprint(template), depth)
	if err != nil {
		return tftypes.Value{}, err
	}
	if kind.Is(tftypes.Number) {
		number, _, err := big.ParseFloat(text, 10, 128, big.ToNearestEven)
		return tftypes.NewValue(kind, number), err
	}
	return tftypes.NewValue(kind, text), nil
}

func (m maker) expand(template string, depth int) (string, error) {
	if depth > 4 {
		return "", fmt.Errorf("%s: the templates refer to each other: %s", m.kind, template)
	}
	var problem error
	text := placeholder.ReplaceAllStringFunc(template, func(match string) string {
		found := placeholder.FindStringSubmatch(match)
		out, err := m.named(found[1], found[2], found[3], depth)
		if err != nil && problem == nil {
			problem = err
		}
		return out
	})
	return text, problem
}

func (m maker) named(name, of, count string, depth int) (string, error) {
	switch name {
	case "digits":
		size, _ := strconv.Atoi(count)
		if of == "id" { // of everything that was asked for
			return digits(m.kind+fmt.Sprint(m.fields), size), nil
		}
		text, err := m.field(of, depth+1)
		return digits(text, size), err
	case "number":
		project, err := m.field("project", depth+1)
		return digits(project, 12), err
	}
	return m.field(name, depth+1)
}

func (m maker) field(name string, depth int) (string, error) {
	if text, known := textOf(nestedIn(m.fields, name)); known {
		return text, nil
	}
	if template, there := m.templates[name]; there {
		return m.expand(fmt.Sprint(template), depth)
	}
	if name == "location" {
		name = "region"
	}
	if text, there := m.defaults[name]; there {
		return text, nil
	}
	return "", fmt.Errorf("%s: '%s' is not set, and what Google computes depends on it", m.kind, name)
}

// The only place where a number stands for another: the same input gives the same digits in every run.
func digits(text string, count int) string {
	sum := sha256.Sum256([]byte(text))
	number := new(big.Int).SetBytes(sum[:]).String()
	return "1" + number[:count-1]
}

func textOf(value tftypes.Value) (string, bool) {
	if value.Type() == nil || !value.IsKnown() || value.IsNull() || !value.Type().Is(tftypes.String) {
		return "", false
	}
	var text string
	err := value.As(&text)
	return text, err == nil
}

// The attribute at a path through nested blocks, of each of which the first counts; a value without a type if there is none.
func nestedIn(fields map[string]tftypes.Value, path string) tftypes.Value {
	first, rest, deeper := strings.Cut(path, ".")
	value := fields[first]
	var blocks []tftypes.Value
	inner := map[string]tftypes.Value{}
	if !deeper || value.Type() == nil || value.As(&blocks) != nil || len(blocks) == 0 || blocks[0].As(&inner) != nil {
		if deeper {
			return tftypes.Value{}
		}
		return value
	}
	return nestedIn(inner, rest)
}

func fieldsOf(value *tfprotov5.DynamicValue, schema *tfprotov5.Schema) (map[string]tftypes.Value, error) {
	fields := map[string]tftypes.Value{}
	read, err := value.Unmarshal(schema.ValueType())
	if err != nil || read.IsNull() {
		return fields, err
	}
	return fields, read.As(&fields)
}

// A path's names, without the indexes of lists; "" inside a set, whose elements have no place.
func dotted(path *tftypes.AttributePath) string {
	var names []string
	for _, step := range path.Steps() {
		switch at := step.(type) {
		case tftypes.AttributeName:
			names = append(names, string(at))
		case tftypes.ElementKeyValue, tftypes.ElementKeyString:
			return ""
		}
	}
	return strings.Join(names, ".")
}

func computedAt(block *tfprotov5.SchemaBlock, name string) bool {
	for _, attribute := range block.Attributes {
		if attribute.Name == name {
			return attribute.Computed
		}
	}
	return false
}
