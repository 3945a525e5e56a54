# Mistakes in variables, each refused by the variable that has it.

mock_provider "google" {}

variables {
  project_id = "my-project"
  region     = "europe-west4"
  operators  = ["group:ml@example.com"]
}

run "a_projects_number" {
  command         = plan
  expect_failures = [var.project_id]

  variables {
    project_id = "123456789012"
  }
}

run "a_zone" {
  command         = plan
  expect_failures = [var.region]

  variables {
    region = "europe-west4-b"
  }
}

run "no_operators" {
  command         = plan
  expect_failures = [var.operators]

  variables {
    operators = []
  }
}

run "an_operator_without_kind" {
  command         = plan
  expect_failures = [var.operators]

  variables {
    operators = ["me@example.com"]
  }
}

run "a_jobs_file" {
  command         = plan
  expect_failures = [var.jobs]

  variables {
    jobs = ["product_texts.yaml"]
  }
}

run "a_streams_topic" {
  command         = plan
  expect_failures = [var.streams]

  variables {
    streams = { "projects/p/topics/t" = {} }
  }
}

run "files_of_nights" {
  command         = plan
  expect_failures = [var.streams]

  variables {
    streams = { texts = { files = "_workers/texts" } }
  }
}

run "files_with_a_scheme" {
  command         = plan
  expect_failures = [var.streams]

  variables {
    streams = { texts = { files = "gs://my-runs/texts" } }
  }
}

run "a_stream_named_as_a_job" {
  command         = plan
  expect_failures = [var.streams]

  variables {
    jobs    = ["texts"]
    streams = { texts = {} }
  }
}

run "a_source_that_is_a_target" {
  command         = plan
  expect_failures = [var.target_datasets]

  variables {
    target_datasets = ["catalog"]
  }
}

run "short_lives" {
  command         = plan
  expect_failures = [var.lifecycle_days]

  variables {
    lifecycle_days = 6
  }
}

run "zones_elsewhere" {
  command         = plan
  expect_failures = [var.default_zones]

  variables {
    default_zones = ["us-central1-a"]
  }
}

run "pools_on_autopilot" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    autopilot  = true
    node_pools = { l4 = { profile = "gpu-l4" } }
  }
}

run "a_pools_name" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { L4 = { profile = "gpu-l4" } }
  }
}

run "a_class_profile" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { l4 = { profile = "gpu-l4-any" } }
  }
}

run "a_cpu_pool" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { cpu = { profile = "cpu" } }
  }
}

run "a_reservation_without_name" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { l4 = { profile = "gpu-l4-reservation" } }
  }
}

run "a_reservation_for_spot" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { l4 = { profile = "gpu-l4-spot", reservation = "mine" } }
  }
}

run "a_tpu_without_topology" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { v6e = { profile = "tpu-v6e-spot" } }
  }
}

run "a_gpu_with_topology" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { l4 = { profile = "gpu-l4", topology = "2x2" } }
  }
}

run "a_slice_in_two_zones" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { v6e = { profile = "tpu-v6e", topology = "4x4", zones = ["europe-west4-a", "europe-west4-b"] } }
  }
}

run "a_slice_in_any_zone" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { h100 = { profile = "gpu-h100-spot", hosts = 2 } }
  }
}

run "a_pools_zones_elsewhere" {
  command         = plan
  expect_failures = [var.node_pools]

  variables {
    node_pools = { l4 = { profile = "gpu-l4", zones = ["us-central1-a"] } }
  }
}

run "a_reservation_elsewhere" {
  command         = plan
  expect_failures = [var.reservations]

  variables {
    reservations = { mine = { machine_type = "g2-standard-8", zone = "us-central1-a", count = 1 } }
  }
}

run "an_empty_reservation" {
  command         = plan
  expect_failures = [var.reservations]

  variables {
    reservations = { mine = { machine_type = "g2-standard-8", zone = "europe-west4-a", count = 0 } }
  }
}

run "a_database_in_a_shared_network" {
  command         = plan
  expect_failures = [var.alloydb]

  variables {
    alloydb        = true
    shared_network = { host_project = "net", network = "vpc", subnetwork = "gpus", pods_range = "pods", services_range = "services" }
  }
}

run "a_key_elsewhere" {
  command         = plan
  expect_failures = [var.kms_key]

  variables {
    kms_key = "projects/k/locations/global/keyRings/r/cryptoKeys/k"
  }
}

run "a_version_of_a_key" {
  command         = plan
  expect_failures = [var.kms_key]

  variables {
    kms_key = "projects/k/locations/europe-west4/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"
  }
}

run "a_budget_of_nothing" {
  command         = plan
  expect_failures = [var.budget]

  variables {
    budget = { billing_account = "012345-6789AB-CDEF01", amount = 0 }
  }
}

run "a_billing_accounts_name" {
  command         = plan
  expect_failures = [var.budget]

  variables {
    budget = { billing_account = "my account", amount = 1 }
  }
}

run "a_long_name" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "nightshift-of-the-search-team"
  }
}
