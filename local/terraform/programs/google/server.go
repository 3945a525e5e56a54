package main

import (
	"context"
	"encoding/json"

	"github.com/hashicorp/terraform-plugin-go/tfprotov5"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

type server struct {
	tfprotov5.ProviderServer // what is not below is not called for resources and data sources
	provider                 *tfprotov5.Schema
	resources, data          map[string]*tfprotov5.Schema
	computed                 catalogue
	defaults                 map[string]string
}

func newServer(file []byte) (*server, error) {
	var read document
	if err := json.Unmarshal(file, &read); err != nil {
		return nil, err
	}
	provider, err := schemas(map[string]block{"provider": read.Provider})
	if err != nil {
		return nil, err
	}
	resources, err := schemas(read.Resources)
	if err != nil {
		return nil, err
	}
	data, err := schemas(read.Data)
	if err != nil {
		return nil, err
	}
	computed, err := newCatalogue()
	if err != nil {
		return nil, err
	}
	return &server{provider: provider["provider"], resources: resources, data: data, computed: computed}, nil
}

func (s *server) GetMetadata(context.Context, *tfprotov5.GetMetadataRequest) (*tfprotov5.GetMetadataResponse, error) {
	out := &tfprotov5.GetMetadataResponse{ServerCapabilities: &tfprotov5.ServerCapabilities{}}
	for kind := range s.resources {
		out.Resources = append(out.Resources, tfprotov5.ResourceMetadata{TypeName: kind})
	}
	for kind := range s.data {
		out.DataSources = append(out.DataSources, tfprotov5.DataSourceMetadata{TypeName: kind})
	}
	return out, nil
}

func (s *server) GetProviderSchema(context.Context, *tfprotov5.GetProviderSchemaRequest) (*tfprotov5.GetProviderSchemaResponse, error) {
	return &tfprotov5.GetProviderSchemaResponse{
		ServerCapabilities: &tfprotov5.ServerCapabilities{}, Provider: s.provider, ResourceSchemas: s.resources, DataSourceSchemas: s.data,
	}, nil
}

func (s *server) GetResourceIdentitySchemas(context.Context, *tfprotov5.GetResourceIdentitySchemasRequest) (*tfprotov5.GetResourceIdentitySchemasResponse, error) {
	return &tfprotov5.GetResourceIdentitySchemasResponse{}, nil
}

func (s *server) PrepareProviderConfig(_ context.Context, r *tfprotov5.PrepareProviderConfigRequest) (*tfprotov5.PrepareProviderConfigResponse, error) {
	return &tfprotov5.PrepareProviderConfigResponse{PreparedConfig: r.Config}, nil
}

func (s *server) ConfigureProvider(_ context.Context, r *tfprotov5.ConfigureProviderRequest) (*tfprotov5.ConfigureProviderResponse, error) {
	fields, err := fieldsOf(r.Config, s.provider)
	s.defaults = map[string]string{}
	for _, name := range []string{"project", "region", "zone"} {
		if text, known := textOf(fields[name]); known {
			s.defaults[name] = text
		}
	}
	return &tfprotov5.ConfigureProviderResponse{}, err
}

func (s *server) StopProvider(context.Context, *tfprotov5.StopProviderRequest) (*tfprotov5.StopProviderResponse, error) {
	return &tfprotov5.StopProviderResponse{}, nil
}

func (s *server) ValidateResourceTypeConfig(context.Context, *tfprotov5.ValidateResourceTypeConfigRequest) (*tfprotov5.ValidateResourceTypeConfigResponse, error) {
	return &tfprotov5.ValidateResourceTypeConfigResponse{}, nil
}

func (s *server) ValidateDataSourceConfig(context.Context, *tfprotov5.ValidateDataSourceConfigRequest) (*tfprotov5.ValidateDataSourceConfigResponse, error) {
	return &tfprotov5.ValidateDataSourceConfigResponse{}, nil
}

func (s *server) PlanResourceChange(_ context.Context, r *tfprotov5.PlanResourceChangeRequest) (*tfprotov5.PlanResourceChangeResponse, error) {
	planned, err := s.rewrite(r.ProposedNewState, r.TypeName, s.resources[r.TypeName], s.plan)
	return &tfprotov5.PlanResourceChangeResponse{PlannedState: planned}, err
}

func (s *server) ApplyResourceChange(_ context.Context, r *tfprotov5.ApplyResourceChangeRequest) (*tfprotov5.ApplyResourceChangeResponse, error) {
	made, err := s.rewrite(r.PlannedState, r.TypeName, s.resources[r.TypeName], s.apply)
	return &tfprotov5.ApplyResourceChangeResponse{NewState: made}, err
}

func (s *server) ReadResource(_ context.Context, r *tfprotov5.ReadResourceRequest) (*tfprotov5.ReadResourceResponse, error) {
	return &tfprotov5.ReadResourceResponse{NewState: r.CurrentState}, nil
}

func (s *server) ReadDataSource(_ context.Context, r *tfprotov5.ReadDataSourceRequest) (*tfprotov5.ReadDataSourceResponse, error) {
	planned, err := s.rewrite(r.Config, "data."+r.TypeName, s.data[r.TypeName], s.plan)
	if err != nil {
		return nil, err
	}
	found, err := s.rewrite(planned, "data."+r.TypeName, s.data[r.TypeName], s.apply)
	return &tfprotov5.ReadDataSourceResponse{State: found}, err
}

func (s *server) UpgradeResourceState(_ context.Context, r *tfprotov5.UpgradeResourceStateRequest) (*tfprotov5.UpgradeResourceStateResponse, error) {
	kind := s.resources[r.TypeName].ValueType()
	value, err := r.RawState.Unmarshal(kind)
	if err != nil {
		return nil, err
	}
	state, err := tfprotov5.NewDynamicValue(kind, value)
	return &tfprotov5.UpgradeResourceStateResponse{UpgradedState: &state}, err
}

type rewriting func(kind string, schema *tfprotov5.Schema, value tftypes.Value) (tftypes.Value, error)

// Passes a value that is not null, as of a resource that is destroyed, through `change`.
func (s *server) rewrite(value *tfprotov5.DynamicValue, kind string, schema *tfprotov5.Schema, change rewriting) (*tfprotov5.DynamicValue, error) {
	read, err := value.Unmarshal(schema.ValueType())
	if err != nil || read.IsNull() {
		return value, err
	}
	changed, err := change(kind, schema, read)
	if err != nil {
		return nil, err
	}
	out, err := tfprotov5.NewDynamicValue(schema.ValueType(), changed)
	return &out, err
}
