# Node pools for the profiles of jobs. What a profile is stands in plugins/nightshift/profiles; tests compare this table with it.

locals {
  # memory: GB of one accelerator. machines: by the number of accelerators. hyperdisk: the machine boots from no other disk.
  hardware = {
    gpu-l4           = { label = "nvidia-l4", memory = 24, hyperdisk = false, machines = { "1" = "g2-standard-8", "2" = "g2-standard-24", "4" = "g2-standard-48", "8" = "g2-standard-96" } }
    gpu-rtx-pro-6000 = { label = "nvidia-rtx-pro-6000", memory = 96, hyperdisk = true, machines = { "1" = "g4-standard-48", "2" = "g4-standard-96", "4" = "g4-standard-192", "8" = "g4-standard-384" } }
    gpu-a100         = { label = "nvidia-tesla-a100", memory = 40, hyperdisk = false, machines = { "1" = "a2-highgpu-1g", "2" = "a2-highgpu-2g", "4" = "a2-highgpu-4g", "8" = "a2-highgpu-8g" } }
    gpu-a100-80gb    = { label = "nvidia-a100-80gb", memory = 80, hyperdisk = false, machines = { "1" = "a2-ultragpu-1g", "2" = "a2-ultragpu-2g", "4" = "a2-ultragpu-4g", "8" = "a2-ultragpu-8g" } }
    gpu-h100         = { label = "nvidia-h100-80gb", memory = 80, hyperdisk = false, machines = { "1" = "a3-highgpu-1g", "2" = "a3-highgpu-2g", "4" = "a3-highgpu-4g", "8" = "a3-highgpu-8g" } }
    gpu-h100-mega    = { label = "nvidia-h100-mega-80gb", memory = 80, hyperdisk = false, machines = { "8" = "a3-megagpu-8g" } }
    gpu-h200         = { label = "nvidia-h200-141gb", memory = 141, hyperdisk = true, machines = { "8" = "a3-ultragpu-8g" } }
    gpu-b200         = { label = "nvidia-b200", memory = 180, hyperdisk = true, machines = { "8" = "a4-highgpu-8g" } }
    tpu-v5e          = { label = "tpu-v5-lite-podslice", memory = 16, hyperdisk = false, machines = { "1" = "ct5lp-hightpu-1t", "4" = "ct5lp-hightpu-4t", "8" = "ct5lp-hightpu-8t" } }
    tpu-v6e          = { label = "tpu-v6e-slice", memory = 32, hyperdisk = true, machines = { "1" = "ct6e-standard-1t", "4" = "ct6e-standard-4t", "8" = "ct6e-standard-8t" } }
  }
  topologies = {
    "1x1"   = { chips = 1, hosts = 1 }
    "2x2"   = { chips = 4, hosts = 1 }
    "2x4"   = { chips = 8, hosts = 1 }
    "4x4"   = { chips = 4, hosts = 4 }
    "4x8"   = { chips = 4, hosts = 8 }
    "8x8"   = { chips = 4, hosts = 16 }
    "8x16"  = { chips = 4, hosts = 32 }
    "16x16" = { chips = 4, hosts = 64 }
  }

  # gpu-l4-spot is the kind gpu-l4, bought as spot.
  kinds = { for each in values(var.node_pools) : each.profile => regex("^(.+?)(?:-spot|-flex|-reservation)?$", each.profile)[0] }

  counts = { for kind, each in local.hardware : kind => [for count in keys(each.machines) : tonumber(count)] }

  described = {
    for name, each in var.node_pools : name => {
      profile     = each.profile
      kind        = local.kinds[each.profile]
      tpu         = each.topology != null
      topology    = each.topology
      max_nodes   = each.max_nodes
      slices      = each.slices
      reservation = each.reservation
      zones       = each.zones
      hosts       = each.topology == null ? each.hosts : local.topologies[each.topology].hosts
      # The smallest machine, unless the pool says how many; whole machines for engines on several.
      accelerators = (
        each.topology != null ? local.topologies[each.topology].chips :
        each.accelerators != null ? each.accelerators :
        each.hosts > 1 ? max(local.counts[local.kinds[each.profile]]...) : min(local.counts[local.kinds[each.profile]]...)
      )
    }
  }

  # One pool, or one for each slice.
  pools = merge([
    for name, each in local.described : {
      for number in range(each.hosts > 1 ? each.slices : 1) : (each.hosts > 1 ? "${name}-${number + 1}" : name) => each
    }
  ]...)
}

resource "google_compute_reservation" "made" {
  for_each = var.reservations
  project  = var.project
  name     = each.key
  zone     = each.value.zone
  # Only who names it gets its machines: else any pool of the project would take them.
  specific_reservation_required = true

  specific_reservation {
    count = each.value.count
    instance_properties {
      machine_type = each.value.machine_type
    }
  }
}

resource "google_container_node_pool" "accelerators" {
  for_each       = local.pools
  project        = var.project
  cluster        = google_container_cluster.this.id
  name           = each.key
  node_locations = each.value.zones == null ? var.zones : each.value.zones

  # From zero and back to zero. Spot machines are short somewhere every night, so one-host engines take any zone; a slice comes whole.
  autoscaling {
    min_node_count       = each.value.hosts > 1 ? 0 : null
    max_node_count       = each.value.hosts > 1 ? each.value.hosts : null
    total_min_node_count = each.value.hosts > 1 ? null : 0
    total_max_node_count = each.value.hosts > 1 ? null : each.value.max_nodes
    location_policy      = "ANY"
  }

  management {
    # Flex-start refuses repair: a machine that ran is not given again.
    auto_repair  = !endswith(each.value.profile, "-flex")
    auto_upgrade = true
  }

  node_config {
    machine_type      = local.hardware[each.value.kind].machines[tostring(each.value.accelerators)]
    service_account   = var.node_account
    spot              = endswith(each.value.profile, "-spot")
    flex_start        = endswith(each.value.profile, "-flex") ? true : null
    boot_disk_kms_key = var.kms_key
    disk_type         = local.hardware[each.value.kind].hyperdisk ? "hyperdisk-balanced" : "pd-balanced"
    # docs/operate/compute.md, "Disk", for the largest model that fits.
    disk_size_gb = ceil((1.2 * (local.hardware[each.value.kind].memory * each.value.accelerators * each.value.hosts + 12) + 120) / 10) * 10

    # Image streaming.
    gcfs_config {
      enabled = true
    }
    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    dynamic "guest_accelerator" {
      for_each = each.value.tpu ? [] : [1]
      content {
        type  = local.hardware[each.value.kind].label
        count = each.value.accelerators
        # vLLM's image is built for CUDA 13, which needs driver 580 or later.
        gpu_driver_installation_config {
          gpu_driver_version = "LATEST"
        }
      }
    }

    dynamic "reservation_affinity" {
      for_each = each.value.reservation == null ? [] : [each.value.reservation]
      content {
        consume_reservation_type = "SPECIFIC_RESERVATION"
        key                      = "compute.googleapis.com/reservation-name"
        values                   = [reservation_affinity.value]
      }
    }
    dynamic "reservation_affinity" {
      for_each = endswith(each.value.profile, "-flex") ? [1] : []
      content {
        consume_reservation_type = "NO_RESERVATION"
      }
    }
  }

  # The hosts of one engine, close to each other.
  dynamic "placement_policy" {
    for_each = each.value.hosts > 1 ? [1] : []
    content {
      type         = "COMPACT"
      tpu_topology = each.value.topology
    }
  }

  # A pool for a reservation that does not exist is refused.
  depends_on = [google_compute_reservation.made]
}
