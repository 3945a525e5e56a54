package main

import (
	"encoding/json"
	"fmt"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// The document of local/terraform/schema.py.
type document struct {
	Provider  block            `json:"provider"`
	Resources map[string]block `json:"resources"`
	Data      map[string]block `json:"data"`
}

type block struct {
	Attributes map[string]attribute `json:"attributes"`
	Blocks     map[string]nested    `json:"blocks"`
}

type attribute struct {
	Type                         json.RawMessage
	Required, Optional, Computed bool
}

type nested struct {
	Nesting  string
	Min, Max int64
	Block    block
}

var nestings = map[string]tfprotov5.SchemaNestedBlockNestingMode{
	"list":   tfprotov5.SchemaNestedBlockNestingModeList,
	"set":    tfprotov5.SchemaNestedBlockNestingModeSet,
	"single": tfprotov5.SchemaNestedBlockNestingModeSingle,
}

func (b block) schema() (*tfprotov5.SchemaBlock, error) {
	out := &tfprotov5.SchemaBlock{}
	for name, a := range b.Attributes {
		kind, err := tftypes.ParseJSONType(a.Type)
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		out.Attributes = append(out.Attributes, &tfprotov5.SchemaAttribute{
			Name: name, Type: kind, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
		})
	}
	for name, n := range b.Blocks {
		inner, err := n.Block.schema()
		if err != nil {
			return nil, fmt.Errorf("block %s: %w", name, err)
		}
		nesting, known := nestings[n.Nesting]
		if !known {
			return nil, fmt.Errorf("block %s: no such nesting: %s", name, n.Nesting)
		}
		out.BlockTypes = append(out.BlockTypes, &tfprotov5.SchemaNestedBlock{
			TypeName: name, Nesting: nesting, Block: inner, MinItems: n.Min, MaxItems: n.Max,
		})
	}
	return out, nil
}

func schemas(blocks map[string]block) (map[string]*tfprotov5.Schema, error) {
	out := map[string]*tfprotov5.Schema{}
	for kind, b := range blocks {
		converted, err := b.schema()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		out[kind] = &tfprotov5.Schema{Block: converted}
	}
	return out, nil
}
