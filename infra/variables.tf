# What you have to say

variable "project_id" {
  description = "The project of Airflow, BigQuery and the bucket of runs."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id, not its number or display name: 6 to 30 lower-case letters, digits and hyphens."
  }
}

variable "region" {
  description = "The region of everything, for example europe-west4. BigQuery's datasets lie there too."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region such as europe-west4: not a zone (europe-west4-b), and no multi-region (EU)."
  }
}

variable "operators" {
  description = "Who creates the cluster and the environment: groups, if you can, for example group:ml-platform@example.com."
  type        = list(string)

  validation {
    condition     = length(var.operators) > 0 && alltrue([for each in var.operators : can(regex("^(user|group|serviceAccount|principalSet):.+$", each))])
    error_message = "operators must name at least one member, each with its kind: group:NAME@DOMAIN, user:NAME@DOMAIN or serviceAccount:EMAIL."
  }
}

# Jobs and streams

variable "jobs" {
  description = "Names of the jobs. Each gets a Kubernetes account that may touch only its own runs."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.jobs : can(regex("^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$", each))])
    error_message = "jobs must be names as in `job:` of a job's file: lower-case letters, digits and hyphens, at most 52."
  }
}

variable "streams" {
  description = <<-END
    Streams by name. Each gets a topic, a subscription and a topic of dead letters: NAME, NAME and NAME-dead.
    ordering: the subscription keeps the order of ordering keys. files: the folder of `sink.files` in the bucket of runs, or null.
  END
  type = map(object({
    ordering = optional(bool, false)
    files    = optional(string)
  }))
  default = {}

  validation {
    condition     = alltrue([for name, _ in var.streams : can(regex("^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$", name))])
    error_message = "streams must be keyed by names as in `job:` of a stream's file: lower-case letters, digits and hyphens, at most 42."
  }
  validation {
    condition     = alltrue([for each in values(var.streams) : each.files == null || can(regex("^[^_/:][^/:]*(/[^/:]+)*$", each.files))])
    error_message = "streams: `files` is a folder in the bucket of runs, without gs:// and without a slash at its ends, and not below _workers, which belongs to nights."
  }
  validation {
    condition     = length(setintersection(keys(var.streams), var.jobs)) == 0
    error_message = "streams and jobs must not share names: both become accounts of the cluster."
  }
}

variable "source_datasets" {
  description = "BigQuery datasets that jobs read."
  type        = list(string)
  default     = ["catalog"]
}

variable "target_datasets" {
  description = "BigQuery datasets that jobs write."
  type        = list(string)
  default     = ["predictions"]

  validation {
    condition     = length(setintersection(var.source_datasets, var.target_datasets)) == 0
    error_message = "A dataset is a source or a target: as a target it is readable too, so leave it out of source_datasets."
  }
}

variable "lifecycle_days" {
  description = "Days after which the objects of runs are deleted: far above the longest run with its pauses and repairs."
  type        = number
  default     = 90

  validation {
    condition     = var.lifecycle_days >= 7
    error_message = "lifecycle_days must be at least 7: a run that loses objects while it is repaired cannot be completed."
  }
}

# Machines

variable "cluster_project_id" {
  description = "The project of the cluster. In production one of its own: the role composer.worker can do almost everything in every cluster of its project."
  type        = string
  default     = null
}

variable "autopilot" {
  description = "Autopilot instead of Standard: Google makes nodes as pods ask for them. Then node_pools must be empty, and only profiles that end in -any are usable."
  type        = bool
  default     = false
}

variable "default_zones" {
  description = "Zones of the ordinary nodes and of pools without zones of their own; the region's three default zones if it is null."
  type        = list(string)
  default     = null

  validation {
    condition     = alltrue([for each in coalesce(var.default_zones, []) : startswith(each, "${var.region}-")])
    error_message = "default_zones must be zones of the region."
  }
}

variable "node_pools" {
  description = <<-END
    Pools of accelerators by name (Standard): the profiles that jobs name and that do not end in -any.
    profile: gpu-KIND or tpu-KIND, with -spot, -flex or -reservation, or on demand. accelerators: of one machine (GPUs).
    topology: of a slice (TPUs). hosts: machines of one engine (GPUs). max_nodes: over all zones, for engines on one host.
    slices: how many engines on several hosts run at once, each in a pool of its own. reservation: the name of the reservation, with
    its project if that is another one (projects/P/reservations/R). zones: all that have the machine; exactly one for slices.
  END
  type = map(object({
    profile      = string
    accelerators = optional(number)
    topology     = optional(string)
    hosts        = optional(number, 1)
    max_nodes    = optional(number, 16)
    slices       = optional(number, 1)
    reservation  = optional(string)
    zones        = optional(list(string))
  }))
  default = {}

  validation {
    condition     = !var.autopilot || length(var.node_pools) == 0
    error_message = "node_pools must be empty with autopilot = true: there Google makes the nodes. Use profiles that end in -any."
  }
  validation {
    condition     = alltrue([for name, _ in var.node_pools : can(regex("^[a-z]([-a-z0-9]{0,34}[a-z0-9])?$", name))])
    error_message = "node_pools must be keyed by names of node pools: lower-case letters, digits and hyphens, at most 36."
  }
  validation {
    condition = alltrue([
      for each in values(var.node_pools) : can(regex("^(gpu|tpu)-[a-z0-9-]+$", each.profile)) && !endswith(each.profile, "-any")
    ])
    error_message = "node_pools: a pool is for a profile gpu-... or tpu-... that does not end in -any: for those the ComputeClass makes pools."
  }
  validation {
    condition     = alltrue([for each in values(var.node_pools) : endswith(each.profile, "-reservation") == (each.reservation != null)])
    error_message = "node_pools: name a `reservation` if, and only if, the profile ends in -reservation."
  }
  validation {
    condition     = alltrue([for each in values(var.node_pools) : startswith(each.profile, "tpu-") == (each.topology != null)])
    error_message = "node_pools: a TPU's pool needs a `topology` such as 2x2 or 4x4, and a GPU's has none."
  }
  validation {
    condition = alltrue([
      for each in values(var.node_pools) :
      (each.hosts == 1 && !can(regex("^([4-9]|1[0-9])x([4-9]|1[0-9])$", each.topology))) || try(length(each.zones) == 1, false)
    ])
    error_message = "node_pools: the hosts of one engine must be in one zone, so a pool with `hosts`, or with a topology of 4x4 or more, names exactly one in `zones`."
  }
  validation {
    condition     = alltrue([for each in values(var.node_pools) : alltrue([for zone in coalesce(each.zones, []) : startswith(zone, "${var.region}-")])])
    error_message = "node_pools: `zones` must be zones of the region."
  }
}

variable "reservations" {
  description = <<-END
    Reservations to make, by name, for pools to use. They cost money from the day they exist, used or not.
    A future reservation or one that another project shares with this one is not made here: name it in node_pools.
  END
  type = map(object({
    machine_type = string
    zone         = string
    count        = number
  }))
  default = {}

  validation {
    condition     = alltrue([for each in values(var.reservations) : startswith(each.zone, "${var.region}-") && each.count > 0])
    error_message = "reservations: `zone` must be a zone of the region and `count` at least 1."
  }
}

variable "default_nodes_max" {
  description = "The most ordinary nodes, over all zones: controllers, CPU nights, subscribers of streams."
  type        = number
  default     = 12
}

variable "maintenance" {
  description = "When GKE may upgrade: by day, because nights run at night. Times in UTC, recurrence as in RFC 5545. exclusions: no upgrade of nodes in between."
  type = object({
    start      = optional(string, "2026-01-01T09:00:00Z")
    end        = optional(string, "2026-01-01T15:00:00Z")
    recurrence = optional(string, "FREQ=DAILY")
    exclusions = optional(map(object({ start = string, end = string })), {})
  })
  default = {}
}

# Network

variable "shared_network" {
  description = "A network that is there, for example of a Shared VPC; null to make one. The ranges are the subnetwork's secondary ranges."
  type = object({
    host_project   = string
    network        = string
    subnetwork     = string
    pods_range     = string
    services_range = string
  })
  default = null
}

variable "nat" {
  description = "Cloud NAT for the network that is made: for models from Hugging Face and images of registry.k8s.io. Without it private nodes reach only Google's APIs and Artifact Registry: mirror the rest."
  type        = bool
  default     = true
}

variable "composer_network_attachment" {
  description = "A network attachment for Airflow; then its environment has no way to the internet but through it. null: Composer's own way out."
  type        = string
  default     = null
}

# Database of streams

variable "alloydb" {
  description = "AlloyDB for the tables of streams. It costs money from the day it exists."
  type        = bool
  default     = false

  validation {
    condition     = !var.alloydb || var.shared_network == null
    error_message = "alloydb needs private service access, which belongs to the network's owner: with shared_network, make the database where the network is, and leave alloydb false."
  }
}

variable "alloydb_cpus" {
  description = "vCPUs of AlloyDB's primary instance."
  type        = number
  default     = 2
}

# Keys, money, names

variable "kms_key" {
  description = "A key of Cloud KMS in the region, with which everything that keeps data is encrypted: projects/P/locations/REGION/keyRings/R/cryptoKeys/K. null: Google's own keys."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key == null || can(regex("^projects/[^/]+/locations/${var.region}/keyRings/[^/]+/cryptoKeys/[^/]+$", var.kms_key))
    error_message = "kms_key must be the full name of a key in the region, projects/P/locations/REGION/keyRings/R/cryptoKeys/K, without a version: a regional bucket takes no other."
  }
}

variable "budget" {
  description = "A monthly budget over both projects, in the billing account's currency; mail goes to the account's administrators. null for none."
  type = object({
    billing_account = string
    amount          = number
  })
  default = null

  validation {
    condition     = var.budget == null ? true : var.budget.amount > 0 && can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.budget.billing_account))
    error_message = "budget: billing_account is an id such as 012345-6789AB-CDEF01, and amount is more than 0."
  }
}

variable "notification_channels" {
  description = "Channels of Cloud Monitoring that alerts go to: projects/P/notificationChannels/N."
  type        = list(string)
  default     = []
}

variable "docker_hub" {
  description = "An account of Docker Hub for pulls without its limits for strangers: a user name, and the version of a secret that holds the token (projects/P/secrets/S/versions/V). null for none."
  type = object({
    username = string
    secret   = string
  })
  default = null
}

variable "name" {
  description = "The name of cluster, environment and repositories, and the prefix of accounts: a second deployment in the same projects has another."
  type        = string
  default     = "nightshift"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,17}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 19 lower-case letters, digits and hyphens: the accounts' names are made from it and may have 30."
  }
}

variable "labels" {
  description = "Labels of everything that takes labels, for your bill."
  type        = map(string)
  default     = {}
}

variable "bucket" {
  description = "The bucket of runs; PROJECT-NAME if it is null. Names of buckets are the whole world's."
  type        = string
  default     = null
}

variable "deletion_protection" {
  description = "Refuses to destroy what holds data: the cluster, the buckets, the datasets and the database. Set it to false and apply before `tofu destroy`."
  type        = bool
  default     = true
}
