variable "name" {
  type = string
}

variable "project" {
  type = string
}

variable "region" {
  type = string
}

variable "autopilot" {
  type = bool
}

variable "zones" {
  type = list(string)
}

variable "node_account" {
  description = "The e-mail address of the nodes' account."
  type        = string
}

variable "network" {
  type = string
}

variable "subnetwork" {
  type = string
}

variable "pods_range" {
  type = string
}

variable "services_range" {
  type = string
}

variable "default_nodes_max" {
  type = number
}

variable "node_pools" {
  description = "As in the root; each pool already checked there."
  type = map(object({
    profile      = string
    accelerators = optional(number)
    topology     = optional(string)
    hosts        = number
    max_nodes    = number
    slices       = number
    reservation  = optional(string)
    zones        = optional(list(string))
  }))

  validation {
    condition     = alltrue([for each in values(var.node_pools) : contains(keys(local.hardware), regex("^(.+?)(?:-spot|-flex|-reservation)?$", each.profile)[0])])
    error_message = "node_pools: there is no such profile. `nightshift plan` and docs/operate/compute.md list them."
  }
}

variable "reservations" {
  type = map(object({
    machine_type = string
    zone         = string
    count        = number
  }))
}

variable "maintenance" {
  type = object({
    start      = string
    end        = string
    recurrence = string
    exclusions = map(object({ start = string, end = string }))
  })
}

variable "kms_key" {
  type = string
}

variable "labels" {
  type = map(string)
}

variable "deletion_protection" {
  type = bool
}
